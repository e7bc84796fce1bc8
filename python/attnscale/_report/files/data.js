// The content of the page, what is chosen on it, and the numbers that follow from both.

const read = (id) => JSON.parse(document.getElementById(id).textContent);
const DATA = read("report-data");
const COLOURS = read("report-colours");
/** One report, or the two that are compared. */
const REPORTS = DATA.pair || [DATA];
const NAMES = DATA.names || [""];
/** What both reports share: heads, lengths, laws. */
const SHARED = REPORTS[0];
const HEADS = SHARED.layers.map((layer, i) => ({ index: i, layer, head: SHARED.heads[i] }));

/** What is chosen on the page; `tell` draws all of it again. */
const state = {
  length: SHARED.lengths.length - 1, // index of the length
  multiple: 1, // of the heads' own scale
  colour: "keys",
  x: "growth",
  y: "keys",
  head: 0, // index of the open head
  layer: "", // filter: a layer, or all
  where: "keys", // filter: a quantity, its sign, the number
  sign: 1,
  number: null,
  sort: "",
  down: false,
};
const listeners = [];
function tell() {
  for (const each of listeners) each();
}
function choose(changes) {
  Object.assign(state, changes);
  tell();
}

/**
 * A value between those at equal steps: a cubic whose slope at each of them is half the difference of the next
 * and the one before, at the ends that of the parabola through three. attnscale/_report/curves.py does the same.
 */
function interpolate(values, place) {
  const last = values.length - 1;
  const slope = (i) => {
    if (i === 0) return (-3 * values[0] + 4 * values[1] - values[2]) / 2;
    if (i === last) return (3 * values[last] - 4 * values[last - 1] + values[last - 2]) / 2;
    return (values[i + 1] - values[i - 1]) / 2;
  };
  const i = Math.min(Math.max(Math.floor(place), 0), last - 1);
  const t = place - i;
  const a = values[i + 1] - values[i];
  const b = slope(i) - a;
  const c = a - slope(i + 1);
  return values[i] + t * a + t * (1 - t) * (b * (1 - t) + c * t);
}

/** The entropy of a head at a length and a multiple of its scale, in nats. */
function entropyAt(report, i, length, multiple) {
  const curve = report.curve[i][length];
  if (curve.some((value) => value === null)) return NaN;
  const m = report.multiples;
  const last = m.length - 1; // steps from the ends, which are not rounded
  return interpolate(curve, (last * Math.log(multiple / m[0])) / Math.log(m[last] / m[0]));
}

const number = (value) => (value === null || value === undefined ? NaN : value);
const atLength = (name) => (report, i) => number(report[name][i][state.length]);
const entropy = (report, i) => entropyAt(report, i, state.length, state.multiple);

function growth(report, i) {
  const n = report.lengths;
  const last = n.length - 1;
  const rise = entropyAt(report, i, last, state.multiple) - entropyAt(report, i, 0, state.multiple);
  return rise / Math.log2(n[last] / n[0]);
}

/** What a head can be coloured, drawn, sorted and filtered by. `log`: the scale of axes and colours. */
const QUANTITIES = {
  keys: { label: "effective keys", value: (r, i) => Math.exp(entropy(r, i)), digits: 3, log: true },
  entropy: { label: "entropy (nats)", value: entropy, digits: 3 },
  growth: { label: "growth (nats a doubling)", value: growth, digits: 2 },
  first: { label: "weight of the first key", value: atLength("first_key_weight"), share: true },
  max: { label: "largest weight of a row", value: atLength("max_weight"), share: true },
  received: { label: "most weight on one key", value: atLength("received"), share: true },
  random: {
    label: "entropy less that of random keys (nats)",
    value: (r, i) => entropy(r, i) - number(r.random_entropy[i][state.length][0]),
    digits: 3,
  },
  beta: { label: "multiple that keeps the entropy", value: atLength("beta"), digits: 3, log: true },
  misses: {
    label: "best law misses by (nats)",
    value: (r, i) => number(r.best_misses[i]),
    digits: 3,
  },
};

function show(quantity, value) {
  const { share, digits } = QUANTITIES[quantity];
  if (!Number.isFinite(value)) return "none";
  if (share) return (100 * value).toPrecision(value < 0.1 ? 2 : 3) + " %";
  return few(value, digits);
}

/** A number to some digits, without an exponent. */
function few(value, digits) {
  if (!Number.isFinite(value)) return "none";
  const size = value === 0 ? 0 : Math.floor(Math.log10(Math.abs(value)));
  return value.toFixed(Math.min(Math.max(digits - 1 - size, 0), 4)).replace("-", "\u2212");
}

const headName = (i) => `layer ${HEADS[i].layer}, head ${HEADS[i].head}`;
const lengthName = () => `${SHARED.lengths[state.length]} tokens`;
const several = REPORTS.length > 1;

/** The indices of the heads that pass the filter. */
function passing() {
  const value = QUANTITIES[state.where].value;
  return HEADS.filter(({ index, layer }) => {
    if (state.layer !== "" && layer !== Number(state.layer)) return false;
    if (state.number === null) return true;
    return REPORTS.some((report) => state.sign * (value(report, index) - state.number) >= 0);
  }).map(({ index }) => index);
}

/** The least and the largest value of a quantity over all heads, lengths and reports, so that colours stay. */
function extent(quantity) {
  const { value, share, log } = QUANTITIES[quantity];
  const before = { length: state.length, multiple: state.multiple };
  const found = [];
  state.multiple = 1;
  SHARED.lengths.forEach((_, length) => {
    state.length = length;
    for (const report of REPORTS) for (const { index } of HEADS) found.push(value(report, index));
  });
  Object.assign(state, before);
  const known = found.filter(Number.isFinite);
  if (!known.length) return [0, 1];
  if (quantity === "keys") return [1, SHARED.lengths[SHARED.lengths.length - 1]];
  const least = Math.min(...known);
  const most = Math.max(...known);
  if (share || quantity === "entropy" || quantity === "misses") return [0, most || 1];
  return least === most ? [least - 0.5, most + 0.5] : [least, most];
}
const EXTENTS = Object.fromEntries(Object.keys(QUANTITIES).map((each) => [each, extent(each)]));
