// Heads of a reader's own .npz file, as read_heads of attnscale/_io.py has them: both read one table of files in
// the tests. The file goes nowhere; what is wrong with it is one line, by `refuse` of attnscale.mjs.

const MOST_BYTES = 2 ** 31; // of all arrays together: more does not fit into the memory of the core

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
let allHalves = null; // filled at the first use: all values of float16
function halves(bits) {
  allHalves ??= Float32Array.from({ length: 65536 }, (_, each) => fromHalf(each));
  return Float32Array.from(bits, (each) => allHalves[each]);
}

const FLOATS = {
  "<f2": [2, (buffer) => halves(new Uint16Array(buffer))],
  "<f4": [4, (buffer) => new Float32Array(buffer)],
  "<f8": [8, (buffer) => Float32Array.from(new Float64Array(buffer))],
};
const WHOLE = { "<i4": [4, (buffer) => new Int32Array(buffer)], "<i8": [8, (buffer) => Float64Array.from(new BigInt64Array(buffer), Number)] };

/** The array of an .npy file, of one of the types: its shape, and its numbers, floating point in float32. */
function readNpy(bytes, name, types) {
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
  if (!types[type]) refuse(`${name} must be ${types === FLOATS ? "floating point: float16, float32 or float64" : "integers"} with the low byte first, got ${type.slice(0, 20)}`);
  if (order === "True") refuse(`${name} is in Fortran order: save numpy.ascontiguousarray of it`);
  const shape = inside.split(",").map((each) => each.trim()).filter(Boolean).map(Number);
  const [item, decode] = types[type];
  const wanted = shape.reduce((product, each) => product * each, item);
  const there = bytes.length - begin - length;
  if (wanted !== there) refuse(`${name} of shape (${shape.join(", ")}) needs ${wanted} bytes, and has ${there}`);
  return { shape, values: decode(bytes.slice(begin + length).buffer) };
}

const NAMES = { query: /^(q|query|queries|query_states)$/i, key: /^(k|key|keys|key_states)$/i, layers: /^layers$/, heads: /^heads$/ };

/** The heads of a file: n, head_dim, the place of each in layers and heads, and its arrays in queries and keys. */
async function readHeads(buffer) {
  const view = new DataView(buffer);
  const entries = zipEntries(view);
  const names = entries.map((each) => each.name.replace(/\.npy$/, ""));
  const arrays = {};
  for (const [name, spellings] of Object.entries(NAMES)) {
    const found = entries.filter((_, i) => spellings.test(names[i]));
    const floats = name === "query" || name === "key";
    if (found.length > 1) refuse(`several arrays could be the ${name}`);
    if (found.length) arrays[name] = readNpy(await zipBytes(view, found[0]), name, floats ? FLOATS : WHOLE);
    else if (floats) refuse(`no array named ${name}; the file has ${names.join(", ").slice(0, 100) || "nothing"}`);
  }
  const { query, key, layers, heads } = arrays;
  for (const [name, { shape, values }] of [["query", query], ["key", key]]) {
    if (shape.length < 2) refuse(`${name} must have 2 axes (n, head_dim) or more, got shape (${shape.join(", ")})`);
    if (shape.length > 4) refuse(`${name} must have the axes (layers, heads, n, head_dim), got shape (${shape.join(", ")})`);
    if (shape.length === 2) shape.unshift(1);
    const bad = values.reduce((count, each) => count + !Number.isFinite(each), 0);
    if (bad) refuse(`${name} holds ${bad} NaN or infinite values`);
  }
  const shapes = `query (${query.shape.join(", ")}) and key (${key.shape.join(", ")})`;
  const [[head_dim, n, each, blocks = 1], [keyDim, keys, keyHeads, keyBlocks = 1]] = [query, key].map(({ shape }) => [...shape].reverse());
  if (query.shape.length !== key.shape.length || blocks !== keyBlocks) refuse(`query and key must have the same batch axes, got ${shapes}`);
  if (head_dim !== keyDim) refuse(`query and key must have the same last dimension, got ${shapes}`);
  if (!query.values.length || !key.values.length) refuse(`query and key must not be empty, got ${shapes}`);
  if (each % keyHeads) refuse(`the number of query heads must be a multiple of that of key heads, got ${shapes}`);
  const isList = (labels) => labels && labels.shape.length === 1 && labels.shape[0] === each;
  if ((layers || heads) && !(isList(layers) && isList(heads))) refuse(`layers and heads must both have one number for each of the ${each} heads`);
  if (n !== keys) refuse(`a report needs as many queries as keys, got ${n} and ${keys}`);
  if (n < 2) refuse("key must have at least 2 keys, got 1");
  const named = layers && blocks === 1;
  const places = Array.from({ length: blocks * each }, (_, i) => i);
  const cut = ({ values }, head) => values.subarray(head * n * head_dim, (head + 1) * n * head_dim);
  return {
    n, head_dim,
    layers: places.map((i) => (named ? layers.values[i] : Math.floor(i / each))),
    heads: places.map((i) => (named ? heads.values[i] : i % each)),
    queries: places.map((i) => cut(query, i)),
    keys: places.map((i) => cut(key, Math.floor((i * keyHeads) / each))),
  };
}
