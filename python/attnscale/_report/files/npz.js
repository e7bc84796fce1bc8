// Arrays of a reader's own .npz file. The file is read here and goes nowhere; what is wrong with it is one line.

const MOST_BYTES = 2 ** 31; // of all arrays together: more does not fit into the memory of the core
const refuse = (text) => { throw new Error(text); };

/** The entries of a ZIP archive: name, method, sizes and place, from its directory, which is its last part. */
function zipEntries(view) {
  const least = Math.max(0, view.byteLength - 65557);
  let end = view.byteLength - 22;
  while (end >= least && view.getUint32(end, true) !== 0x06054b50) end--;
  if (end < least) refuse("this is no .npz file: it has no directory of a ZIP archive");
  const count = view.getUint16(end + 10, true);
  let at = view.getUint32(end + 16, true);
  const entries = [];
  for (let i = 0; i < count; i++) {
    if (at + 46 > end || view.getUint32(at, true) !== 0x02014b50) refuse("the directory of the file is damaged");
    const [nameLength, extra, comment] = [28, 30, 32].map((place) => view.getUint16(at + place, true));
    if (at + 46 + nameLength > end) refuse("the directory of the file is damaged");
    entries.push({
      name: new TextDecoder().decode(new Uint8Array(view.buffer, view.byteOffset + at + 46, nameLength)),
      flags: view.getUint16(at + 8, true),
      method: view.getUint16(at + 10, true),
      packed: view.getUint32(at + 20, true),
      size: view.getUint32(at + 24, true),
      at: view.getUint32(at + 42, true),
    });
    at += 46 + nameLength + extra + comment;
  }
  return entries;
}

/** The bytes of an entry, as many as the directory says and no more. */
async function zipBytes(view, entry) {
  const { name, at, packed, size, method } = entry;
  if (entry.flags & 1) refuse(`${name} is encrypted`);
  if (size >= MOST_BYTES) refuse(`${name} holds 2 GiB or more, which a page cannot measure`);
  if (at + 30 > view.byteLength || view.getUint32(at, true) !== 0x04034b50) refuse(`${name} is not where the file says`);
  const from = at + 30 + view.getUint16(at + 26, true) + view.getUint16(at + 28, true);
  if (from + packed > view.byteLength) refuse(`${name} ends behind the end of the file`);
  const bytes = new Uint8Array(view.buffer, view.byteOffset + from, packed);
  if (method === 0) return packed === size ? bytes : refuse(`${name} has two sizes, ${packed} and ${size}`);
  if (method !== 8) refuse(`${name} is compressed by a method that is not read; numpy.savez writes one that is`);
  if (size > 1100 * packed) refuse(`${name} holds ${size} bytes, the file says, more than ${packed} can become`);
  const found = new Uint8Array(size);
  let filled = 0;
  const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      if (filled + part.value.length > size) refuse(`${name} holds more than the ${size} bytes that the file says`);
      found.set(part.value, filled);
      filled += part.value.length;
    }
  } catch (error) {
    refuse(error instanceof TypeError ? `${name} cannot be decompressed` : error.message);
  }
  return filled === size ? found : refuse(`${name} holds ${filled} bytes, and the file says ${size}`);
}

/** A number of float16 from its bits. */
function fromHalf(bits) {
  const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction);
}
const HALVES = new Map(); // filled at the first use: all values of float16
function halves(bits) {
  if (!HALVES.size) HALVES.set("all", Float32Array.from({ length: 65536 }, (_, each) => fromHalf(each)));
  const all = HALVES.get("all");
  return Float32Array.from(bits, (each) => all[each]);
}

const TYPES = {
  "<f2": [2, (buffer) => halves(new Uint16Array(buffer))],
  "<f4": [4, (buffer) => new Float32Array(buffer)],
  "<f8": [8, (buffer) => Float32Array.from(new Float64Array(buffer))],
};

/** The array of an .npy file: its shape, and its numbers in float32. */
function readNpy(bytes, name) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const magic = [0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59];
  if (bytes.length < 12 || magic.some((each, i) => bytes[i] !== each)) refuse(`${name} is no array of NumPy`);
  const wide = bytes[6] > 1;
  const begin = wide ? 12 : 10;
  const length = wide ? view.getUint32(8, true) : view.getUint16(8, true);
  if (begin + length > bytes.length) refuse(`the header of ${name} is longer than the array`);
  const header = new TextDecoder().decode(bytes.subarray(begin, begin + length));
  const type = (/'descr':\s*'([^']*)'/.exec(header) || [])[1];
  const order = (/'fortran_order':\s*(True|False)/.exec(header) || [])[1];
  const inside = (/'shape':\s*\(([\d\s,]*)\)/.exec(header) || [])[1];
  if (type === undefined || order === undefined || inside === undefined) refuse(`the header of ${name} cannot be read`);
  if (!TYPES[type]) refuse(`${name} must be float16, float32 or float64 with its low byte first, got ${type.slice(0, 20)}`);
  if (order === "True") refuse(`${name} is in Fortran order: save numpy.ascontiguousarray of it`);
  const shape = inside.split(",").map((each) => each.trim()).filter(Boolean).map(Number);
  const [item, decode] = TYPES[type];
  const wanted = shape.reduce((product, each) => product * each, item);
  const there = bytes.length - begin - length;
  if (wanted !== there) refuse(`${name} of shape (${shape.join(", ")}) needs ${wanted} bytes, and has ${there}`);
  return { shape, values: decode(bytes.slice(begin + length).buffer) };
}

/** Query and key of a file, as heads: {n, head_dim, queries: [...], keys: [...]}, one array of each for a head. */
async function readHeads(buffer) {
  const view = new DataView(buffer);
  const entries = zipEntries(view);
  const arrays = {};
  for (const name of ["query", "key"]) {
    const entry = entries.find((each) => each.name === `${name}.npy`);
    const known = entries.map((each) => each.name.replace(/\.npy$/, "")).slice(0, 6).join(", ");
    if (!entry) refuse(`the file must hold arrays named query and key, got ${known.slice(0, 100) || "none"}`);
    arrays[name] = readNpy(await zipBytes(view, entry), name);
  }
  const { query, key } = arrays;
  for (const [name, { shape, values }] of Object.entries(arrays)) {
    if (shape.length < 2) refuse(`${name} must have the axes (heads, n, head_dim), got shape (${shape.join(", ")})`);
    const bad = values.reduce((count, each) => count + !Number.isFinite(each), 0);
    if (bad) refuse(`${name} must be finite, got ${bad} numbers that are NaN or infinite`);
  }
  const [[n, head_dim], [keys, key_dim]] = [query, key].map(({ shape }) => shape.slice(-2));
  if (head_dim !== key_dim) refuse(`query and key must have the same head_dim, got ${head_dim} and ${key_dim}`);
  if (n !== keys) refuse(`the page measures as many queries as keys, got ${n} and ${keys}`);
  if (n < 2 || head_dim < 1) refuse(`query must have 2 rows and a channel at least, got ${n} and ${head_dim}`);
  const [heads, keyHeads] = [query, key].map(({ values }) => values.length / (n * head_dim));
  if (!heads || !keyHeads || heads % keyHeads) refuse(`query must have a multiple of the ${keyHeads} heads of key, got ${heads}`);
  const cut = (values, head) => values.subarray(head * n * head_dim, (head + 1) * n * head_dim);
  const each = Array.from({ length: heads }, (_, head) => head);
  return {
    n, head_dim,
    queries: each.map((head) => cut(query.values, head)),
    keys: each.map((head) => cut(key.values, Math.floor((head * keyHeads) / heads))),
  };
}
