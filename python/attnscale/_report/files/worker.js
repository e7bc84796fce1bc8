// What the worker of a page runs behind the module of the core: "Measure again", and all numbers of a reader's own file.

const BLOCK = 256; // rows whose weights are in memory at once
const MOST_KEYS = 8; // of a row, that are named
const LENGTHS = 5; // of the figure of a head: n and its halves
const [BINS, POSITIONS, KNOTS, RESOLUTION] = [20, 16, 5, 1e-6]; // as measure.py and calibrate.py have them
const RATE = 2e10; // operations a second, to estimate by
let core;
let shown; // the head, and the scale, that were measured last
let opened; // the heads of the reader's file, and what they are measured at

/** How many letters have to change, come or go from one word to the other. */
function distance(a, b) {
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 0; i < a.length; i++) {
    const next = [i + 1];
    for (let j = 0; j < b.length; j++) next.push(Math.min(row[j + 1] + 1, next[j] + 1, row[j] + (a[i] !== b[j])));
    row = next;
  }
  return row[b.length];
}

/** A number multiplies the head's own scale; anything else is a law, which the core reads. */
function scaleOf(law, head_dim) {
  const number = Number(law);
  if (!Number.isNaN(number)) return number / Math.sqrt(head_dim);
  const name = law.split("(")[0].trim();
  if (!core.laws.includes(name)) {
    const nearest = core.laws.reduce((best, each) => (distance(name, each) < distance(name, best) ? each : best));
    throw new Error(`there is no law ${name}; did you mean ${nearest}?`);
  }
  return core.law(law).spelling;
}

/** A head with its arrays: of the open file, or as a page carries them. */
function withArrays(head) {
  if (head.own !== undefined) return { ...head, query: opened.queries[head.own], key: opened.keys[head.own] };
  const decode = (text) => halves(new Uint16Array(Uint8Array.from(atob(text), (each) => each.charCodeAt(0)).buffer));
  return { ...head, query: decode(head.query), key: decode(head.key) };
}
const ownHead = (i) => withArrays({ head_dim: opened.head_dim, is_causal: opened.is_causal, own: i });

/** The call of rows begin ... end - 1 of the first n queries and keys. */
function callOf({ query, key, head_dim, is_causal, window }, scale, n, begin, end) {
  const keys = is_causal ? end : n;
  return {
    query: query.subarray(begin * head_dim, end * head_dim),
    key: key.subarray(0, keys * head_dim),
    headDim: head_dim,
    causal: is_causal && "bottom_right",
    ...(window && { window }),
    scale,
  };
}

/** Whether rows know their place: without a causal mask a window, and laws of the position, count from the first row. */
const isCutAlike = ({ is_causal, window }, scale) =>
  is_causal || (!window && (typeof scale === "number" || !core.law(scale).meaning.startsWith("query position")));
function* blocks(head, scale, n) {
  const rows = isCutAlike(head, scale) ? BLOCK : n;
  for (let begin = 0; begin < n; begin += rows) yield [begin, Math.min(begin + rows, n)];
}

const mean = (values) => values.reduce((sum, each) => sum + each, 0) / values.length;
/** How many rows count at a length: of causal ones the last eighth. */
const counted = ({ is_causal }, n) => (is_causal ? Math.max(Math.floor(n / 8), 1) : n);
const meanOf = (head, rows) => mean(rows.subarray(rows.length - counted(head, rows.length)));
/** The call of the rows that count. */
const callOfCounted = (head, scale, n) => callOf(head, scale, n, n - counted(head, n), n);

/** Mean entropy of the rows that count. */
function entropyAt(head, scale, n) {
  return mean(core.attention({ ...callOfCounted(head, scale, n), statistics: ["entropy"] }).entropy);
}

/** Statistics of all rows at one scale, and what each key receives; `see` gets the weights of a block of rows. */
function rowsAt(head, scale, n, see) {
  const first = new Float32Array(n);
  first[0] = 1;
  const [entropy, max_weight, first_key, received] = [0, 0, 0, 0].map(() => new Float64Array(n));
  for (const [begin, end] of blocks(head, scale, n)) {
    const call = callOf(head, scale, n, begin, end);
    const value = first.subarray(0, call.key.length / head.head_dim);
    const found = core.attention({ ...call, value, statistics: ["entropy", "max_weight"], ...(see ? { weights: true } : { received: true }) });
    entropy.set(found.entropy, begin);
    max_weight.set(found.max_weight, begin);
    first_key.set(found.output, begin);
    if (see) see(found.weights, begin, end);
    else found.received.forEach((sum, key) => { received[key] += sum / n; });
  }
  return { entropy, max_weight, first_key, received };
}

// ---- all numbers of a head of the reader's file, as measure.py has them ---------------------------

/** The n of laws in a row that sees so many keys. */
const COUNTS = {
  "not used": () => 1,
  "visible keys": (row, visible) => visible,
  "row size": (row, visible) => visible,
  "query position": (row) => row,
  "query position + 1": (row) => row + 1,
  "query position + 2": (row) => row + 2,
};
const isKnownLaw = (law) => {
  try {
    return core.law(law).meaning in COUNTS;
  } catch {
    return false; // of Python alone
  }
};

/** The keys that each counted row sees, and its scale under a law. */
const visibleKeys = (head, n) => Float64Array.from({ length: counted(head, n) }, (_, k) => (head.is_causal ? n - counted(head, n) + k + 1 : n));
function lawScales(head, law, n) {
  const of = COUNTS[core.law(law).meaning];
  const first = head.is_causal ? n - counted(head, n) : 0;
  return core.lawScales(law, visibleKeys(head, n).map((visible, k) => of(first + k, visible)), head.head_dim);
}
const underLaw = (head, scales, n) => (scales.every(Number.isFinite) ? entropyAt(head, scales, n) : NaN);

const EXPECTED = new Map(); // heads share their numbers of keys, and the expectation takes its time
function expected(n, beta, head_dim) {
  const name = `${n} ${beta} ${head_dim}`;
  if (!EXPECTED.has(name)) EXPECTED.set(name, core.expectedStatistics(n, beta, { headDim: head_dim }).entropy);
  return EXPECTED.get(name);
}

/** As NumPy rounds. */
const halfToEven = (x) => (x % 2 === 0.5 ? Math.floor(x) : Math.round(x));

/** Mean over the rows of what as many random keys have; between knots along the logarithm of the number of keys. */
function randomEntropy(head, n, beta) {
  const visible = head.is_causal ? visibleKeys(head, n) : [n];
  const knots = [...new Set(Array.from({ length: KNOTS }, (_, k) => halfToEven((k * (visible.length - 1)) / (KNOTS - 1))))];
  const values = knots.map((k) => expected(visible[k], beta(k), head.head_dim));
  return mean(Float64Array.from(visible, (keys, k) => {
    const b = Math.max(knots.findIndex((knot) => knot >= k), 1);
    if (knots.length === 1) return values[0];
    const [low, high] = [Math.log(visible[knots[b - 1]]), Math.log(visible[knots[b]])];
    return values[b - 1] + ((values[b] - values[b - 1]) * (Math.log(keys) - low)) / (high - low);
  }));
}

const BY_MULTIPLE = ["curve", "random_curve", "max_weight_curve", "first_key_curve", "received_curve", "received_by_curve"];
/** The numbers at the multiples that are asked for, null at the others, and the rows at the last one. */
function atMultiples(head, n, isWanted) {
  const curves = Object.fromEntries(BY_MULTIPLE.map((name) => [name, opened.multiples.map(() => null)]));
  let rows;
  opened.multiples.forEach((multiple, k) => {
    if (!isWanted(multiple)) return;
    rows = rowsAt(head, multiple / Math.sqrt(head.head_dim), n);
    const by = rows.received.reduce((best, share, key) => (share > rows.received[best] ? key : best), 0);
    const numbers = [meanOf(head, rows.entropy), randomEntropy(head, n, () => multiple), meanOf(head, rows.max_weight),
      meanOf(head, rows.first_key), rows.received[by], by];
    BY_MULTIPLE.forEach((name, at) => { curves[name][k] = numbers[at]; });
  });
  return { curves, rows };
}

/** The numbers of a head at a length and its own scale. */
function atLength(head, n) {
  const { curves, rows } = atMultiples(head, n, (multiple) => multiple === 1);
  const visible = visibleKeys(head, n);
  const histogram = new Array(BINS).fill(0);
  const most = Math.max(Math.log(n), 1e-6);
  for (const nats of rows.entropy.subarray(n - visible.length)) histogram[Math.min(Math.max(Math.floor((nats / most) * BINS), 0), BINS - 1)]++;
  const edge = (k) => k * Math.floor(n / POSITIONS) + Math.min(k, n % POSITIONS);
  const root = Math.sqrt(head.head_dim);
  const scales = opened.laws.map(({ name }) => lawScales(head, name, n));
  return {
    ...curves,
    entropy: scales.map((each, k) => (k ? underLaw(head, each, n) : meanOf(head, rows.entropy))),
    random_entropy: scales.map((each) => (each.every(Number.isFinite) ? randomEntropy(head, n, (k) => Math.abs(each[k]) * root) : NaN)),
    uniform_entropy: mean(visible.map(Math.log)),
    uniform_first_key: mean(visible.map((keys) => 1 / keys)),
    uniform_received: head.is_causal ? mean(Float64Array.from({ length: n }, (_, k) => 1 / (k + 1))) : 1 / n,
    histogram,
    by_position: Array.from({ length: POSITIONS }, (_, k) => mean(rows.entropy.subarray(edge(k), edge(k + 1)))),
  };
}

/** The multiple that keeps the entropy of the first length, and how well laws with a constant do. */
function calibrated(head) {
  const { lengths, laws } = opened;
  const root = Math.sqrt(head.head_dim);
  const target = entropyAt(head, 1 / root, lengths[0]);
  const isFlat = target >= mean(visibleKeys(head, lengths[0]).map(Math.log)) - RESOLUTION;
  const beta = lengths.map((n) => {
    if (isFlat) return NaN;
    const { scale, feasible } = core.solveScale({ ...callOfCounted(head, undefined, n), targetEntropy: target, per: "head" });
    return feasible[0] ? scale[0] * root : NaN;
  });
  const known = lengths.map((_, l) => l).filter((l) => Number.isFinite(beta[l]));
  const fits = laws.map(({ name }) => {
    const scales = lengths.map((n) => lawScales(head, name, n));
    const m = scales.map((each) => mean(each) * root);
    const sum = (of) => known.reduce((total, l) => total + of(l), 0);
    const constant = sum((l) => m[l] * beta[l]) / sum((l) => m[l] ** 2);
    const miss = (l) => underLaw(head, scales[l].map((each) => constant * each), lengths[l]) - target;
    return { constant, misses: Math.sqrt(sum((l) => miss(l) ** 2) / known.length) };
  });
  const misses = fits.map((each) => (known.length > 1 ? each.misses : NaN));
  const best = misses.reduce((least, each, k) => (each < (misses[least] ?? Infinity) ? k : least), -1);
  return { beta, best, best_constant: best < 0 ? NaN : fits[best].constant, best_misses: best < 0 ? NaN : misses[best], misses };
}

/** What JSON has: null for what is no finite number. */
function plainNumbers(value) {
  if (typeof value === "number") return Number.isFinite(value) ? value : null;
  return value && (Array.isArray(value) ? value.map(plainNumbers) : Object.fromEntries(Object.entries(value).map(([name, each]) => [name, plainNumbers(each)])));
}

/** Objects of each length as one object of arrays with the lengths first. */
const stacked = (parts) => Object.fromEntries(Object.keys(parts[0]).map((name) => [name, parts.map((part) => part[name])]));

// ---- the questions --------------------------------------------------------------------------------

const TASKS = {
  async start({ wasm, file }) {
    core = await load(Uint8Array.from(atob(wasm), (each) => each.charCodeAt(0)));
    if (file) await TASKS.open(file);
  },

  laws: () => [...core.laws],

  /** The heads of a file, what they will be measured at, and about how many seconds that takes. */
  async open({ file, is_causal, laws, multiples }) {
    if (file.size >= MOST_BYTES) refuse("it has 2 GiB or more, which a page cannot measure");
    const heads = await readHeads(await file.arrayBuffer());
    const { n, head_dim } = heads;
    const lengths = [...[n >> 3, n >> 2, n >> 1].filter((each) => each >= 16), n];
    const known = laws.filter(({ name }) => isKnownLaw(name));
    opened = { ...heads, is_causal, laws: known, multiples, lengths };
    const work = (heads.layers.length * lengths.reduce((sum, each) => sum + each ** 2, 0) * (2 * head_dim + 30)) / RATE;
    const [whole, part] = is_causal ? [0.5, 0.125] : [1, 1]; // of the pairs, in passes over all rows and over those that count
    return {
      n, head_dim, lengths, laws: known, layers: heads.layers, heads: heads.heads, version: core.version,
      seconds: { plain: work * (3 * whole + (2 * known.length + 8) * part), rest: work * 3 * multiples.length * whole },
    };
  },

  /** All numbers of a head of the file but those at multiples of its scale. */
  plain({ head: i }, tell) {
    const head = ownHead(i);
    const parts = opened.lengths.map((n) => {
      const found = atLength(head, n);
      tell(n / (2 * opened.n));
      return found;
    });
    return plainNumbers({ ...stacked(parts), ...calibrated(head) });
  },

  /** The numbers of a head of the file at all multiples. */
  curves: ({ head: i }) => plainNumbers(stacked(opened.lengths.map((n) => atMultiples(ownHead(i), n, () => true).curves))),

  measure({ head: given, n, law, map: most }, tell) {
    const head = withArrays(given);
    const scale = scaleOf(law, head.head_dim);
    const fields = Math.min(n, most);
    const map = new Float32Array(fields * fields);
    const { entropy, max_weight, first_key } = rowsAt(head, scale, n, (weights, begin, end) => {
      const keys = weights.length / (end - begin);
      weights.forEach((weight, at) => {
        const field = Math.floor(((begin + Math.floor(at / keys)) * fields) / n) * fields + Math.floor(((at % keys) * fields) / n);
        if (weight > map[field]) map[field] = weight;
      });
      tell(end / n);
    });
    const lengths = Array.from({ length: LENGTHS }, (_, k) => n >> (LENGTHS - 1 - k)).filter((each) => each >= Math.min(n, 8));
    shown = { ...head, n, scale };
    const [curve, plain] = [scale, 1 / Math.sqrt(head.head_dim)].map((each) => lengths.map((length) => entropyAt(head, each, length)));
    return { entropy, max_weight, first_key, map, fields, lengths, counted: counted(head, n), curve, plain };
  },

  row({ row }) {
    const { n, scale } = shown;
    const begin = isCutAlike(shown, scale) ? row : 0;
    const found = core.attention({ ...callOf(shown, scale, n, begin, row + 1), statistics: ["entropy"], weights: true });
    const weights = found.weights.slice(-(found.weights.length / (row + 1 - begin)));
    const keys = Array.from(weights.keys()).filter((key) => weights[key] > 0);
    const strongest = keys.sort((a, b) => weights[b] - weights[a]).slice(0, MOST_KEYS);
    return { keys: strongest, weights: strongest.map((key) => weights[key]), entropy: found.entropy.at(-1) };
  },
};

let last = Promise.resolve(); // one question after the other
async function answer({ id, task, ...content }) {
  try {
    postMessage({ id, found: await TASKS[task](content, (share) => postMessage({ id, share })) });
  } catch (error) {
    postMessage({ id, error: error.message });
  }
}
addEventListener("message", ({ data }) => { last = last.then(() => answer(data)); });
