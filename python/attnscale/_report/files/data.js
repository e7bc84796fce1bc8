// The content of the page, what is chosen on it, and the numbers that follow from both.

/** One report, or the two that are compared. */
const REPORTS = DATA.pair || [DATA];
const NAMES = DATA.names || [""];
/** What both reports share: heads, lengths, laws. */
const SHARED = REPORTS[0];
const HEADS = SHARED.layers.map((layer, i) => ({
  index: i, layer, head: SHARED.heads[i], module: SHARED.modules[i] || "", group: SHARED.groups[i] || "",
}));
/** The parts of the map: towers of a model, self- and cross-attention. */
const GROUPS = [...new Set(HEADS.map(({ group }) => group))];

/** The place of the heads' own scale among the multiples. */
const OWN = SHARED.multiples.indexOf(1);

/** What is chosen on the page; `tell` draws all of it again. */
const state = {
  length: SHARED.lengths.length - 1, // index of the length
  multiple: OWN, // index of the multiple of the heads' own scale
  colour: "keys",
  x: "growth",
  y: "keys",
  head: 0, // index of the open head
  random: false, // whether random keys are drawn under every law
  layer: "", // filter: a layer, or all
  where: "keys", // filter: a quantity, its sign, the number
  sign: 1,
  number: null,
  sort: "",
  of: 0, // of two reports, whose numbers sort: 0, 1, or 2 for the difference
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

/** The least and the largest of numbers, however many there are: a call takes no more than some 100,000 arguments. */
const ends = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

const number = (value) => (value === null || value === undefined ? NaN : value);
/** A number of a head that was measured at every length and every multiple, or at those chosen. */
const at = (report, name, i, length, multiple) => number(report[name][i][length][multiple]);
const chosen = (name) => (report, i) => at(report, name, i, state.length, state.multiple);
const entropy = chosen("curve");

/** Whether a head's weights are nearly equal at the shortest length: then no law is judged by its entropy there. */
const NEARLY = 0.05; // nats below equal weights: result.py has it, too
const nearlyEqual = (report, i) => number(report.uniform_entropy[i][0]) - number(report.entropy[i][0][0]) < NEARLY;

function growth(report, i) {
  const n = report.lengths;
  const last = n.length - 1;
  const rise = at(report, "curve", i, last, state.multiple) - at(report, "curve", i, 0, state.multiple);
  return rise / Math.log2(n[last] / n[0]);
}

/**
 * What a head can be coloured, drawn, sorted and filtered by, at the chosen length and multiple; a label says
 * where it does not follow the multiple. `log`: the scale of axes and colours; `short`: for narrow windows;
 * `least`: a difference that fills no scale of colours and no axis.
 */
const QUANTITIES = {
  keys: { label: "effective keys", short: "keys", value: (r, i) => Math.exp(entropy(r, i)), digits: 3, log: true, least: 1 },
  entropy: { label: "entropy (nats)", short: "entropy", value: entropy, digits: 3, least: 0.05 },
  growth: { label: "growth (nats a doubling)", short: "growth", value: growth, digits: 2, least: 0.05 },
  first: { label: "weight of the first key", short: "first key", value: chosen("first_key_curve"), share: true, least: 0.01 },
  max: { label: "largest weight of a row", short: "largest", value: chosen("max_weight_curve"), share: true, least: 0.01 },
  received: { label: "most weight on one key", short: "one key", value: chosen("received_curve"), share: true, least: 0.01 },
  random: {
    label: "entropy less random keys\u2019 (nats)",
    short: "less random",
    value: (r, i) => entropy(r, i) - chosen("random_curve")(r, i),
    digits: 3,
    least: 0.05,
  },
  beta: {
    label: "scale factor that keeps the entropy, at \u00d7 1",
    short: "keeps, \u00d7 1",
    value: (r, i) => number(r.beta[i][state.length]),
    digits: 3,
    least: 0.05,
    log: true,
  },
  misses: {
    label: "best law misses by (nats), at \u00d7 1",
    short: "misses, \u00d7 1",
    value: (r, i) => number(r.best_misses[i]),
    digits: 3,
    least: 0.05,
  },
};

function show(quantity, value) {
  const { share, digits } = QUANTITIES[quantity];
  if (!Number.isFinite(value)) return "none";
  if (share) return (100 * value).toPrecision(value < 0.1 ? 2 : 3) + " %";
  return few(value, digits);
}

function headName(i) {
  const { layer, head, module } = HEADS[i];
  return GROUPS.length > 1 ? `head ${head} of ${module}` : `layer ${layer}, head ${head}`;
}
const lengthName = () => `${SHARED.lengths[state.length]} tokens`;
/** A multiple as it is shown, and what is added to a name where it is not 1. */
const multipleName = (multiple = state.multiple) => `${few(SHARED.multiples[multiple], 3)} \u00d7`;
const atMultiple = () => (state.multiple === OWN ? "" : `, at ${multipleName()} the scale`);
/** What is added to the name of something that the slider does not move, once it has moved the rest. */
const asMeasured = () => (state.multiple === OWN ? "" : ", at \u00d7 1");
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

/**
 * The least and the largest value of a quantity over all heads, lengths and reports, at the heads' own scale
 * and at the chosen multiple: so colours stay when the length changes, and no number is beyond them.
 */
function extent(quantity) {
  const { value, share, log } = QUANTITIES[quantity];
  const before = { length: state.length, multiple: state.multiple };
  const found = [];
  for (const multiple of new Set([OWN, before.multiple]))
    SHARED.lengths.forEach((_, length) => {
      Object.assign(state, { length, multiple });
      for (const report of REPORTS) for (const { index } of HEADS) found.push(value(report, index));
    });
  Object.assign(state, before);
  const known = found.filter(Number.isFinite);
  if (!known.length) return log ? [1, 10] : [0, 1];
  if (quantity === "keys") return [1, SHARED.lengths[SHARED.lengths.length - 1]];
  const [least, most] = ends(known);
  if (share || quantity === "entropy" || quantity === "misses") return [0, most || 1];
  return least === most ? [least - 0.5, most + 0.5] : [least, most];
}
const EXTENTS = new Map();
function extentOf(quantity) {
  const name = `${quantity} ${state.multiple}`;
  if (!EXTENTS.has(name)) EXTENTS.set(name, extent(quantity));
  return EXTENTS.get(name);
}
