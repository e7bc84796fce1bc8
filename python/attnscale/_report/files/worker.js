// What the worker of a page runs behind the module of the core: the questions of "Measure again".

const BLOCK = 256; // rows whose weights are in memory at once
const MOST_KEYS = 8; // of a row, that are named
const LENGTHS = 5; // of the figure: n and its halves
let core;
let shown; // the head, and the scale, that were measured last

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

/** How many rows count at a length: of causal ones the last eighth. */
const counted = ({ is_causal }, n) => (is_causal ? Math.max(Math.floor(n / 8), 1) : n);

/** Mean entropy of the rows that count at each length. */
function curve(head, scale, lengths) {
  return lengths.map((n) => {
    const rows = counted(head, n);
    const begin = head.is_causal ? n - rows : 0;
    const { entropy } = core.attention({ ...callOf(head, scale, n, begin, n), statistics: ["entropy"] });
    return entropy.slice(-rows).reduce((sum, each) => sum + each, 0) / rows;
  });
}

const TASKS = {
  async start({ wasm }) {
    core = await load(wasm);
    return [...core.laws];
  },

  measure(head, tell) {
    const { n, head_dim, law, map: most } = head;
    const scale = scaleOf(law, head_dim);
    const own = 1 / Math.sqrt(head_dim);
    const fields = Math.min(n, most);
    const map = new Float32Array(fields * fields);
    const [entropy, max_weight, first_key] = [0, 0, 0].map(() => new Float64Array(n));
    for (const [begin, end] of blocks(head, scale, n)) {
      const found = core.attention({ ...callOf(head, scale, n, begin, end), statistics: ["entropy", "max_weight"], weights: true });
      const keys = found.weights.length / (end - begin);
      entropy.set(found.entropy, begin);
      max_weight.set(found.max_weight, begin);
      for (let row = begin; row < end; row++) {
        const weights = found.weights.subarray((row - begin) * keys, (row - begin + 1) * keys);
        const place = Math.floor((row * fields) / n) * fields;
        first_key[row] = weights[0];
        weights.forEach((weight, key) => {
          const field = place + Math.floor((key * fields) / n);
          if (weight > map[field]) map[field] = weight;
        });
      }
      tell(end / n);
    }
    const lengths = Array.from({ length: LENGTHS }, (_, k) => n >> (LENGTHS - 1 - k)).filter((each) => each >= Math.min(n, 8));
    shown = { ...head, scale };
    return {
      entropy, max_weight, first_key, map, fields, lengths,
      counted: counted(head, n), curve: curve(head, scale, lengths), plain: curve(head, own, lengths),
    };
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

addEventListener("message", async ({ data }) => {
  const tell = (share) => postMessage({ id: data.id, share });
  try {
    postMessage({ id: data.id, found: await TASKS[data.task](data, tell) });
  } catch (error) {
    postMessage({ id: data.id, error: error.message });
  }
});
