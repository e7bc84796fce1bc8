// One head: entropy against length and against the scale, its rows, and what keeps its entropy.

const colourClass = (k) => `c${k % 6}`;
const lengthTicks = SHARED.lengths.length <= 8 ? SHARED.lengths : undefined;

function againstLength(report, i) {
  const n = report.lengths;
  const values = [...report.entropy[i].flat(), ...report.random_entropy[i].flat(), ...report.uniform_entropy[i]];
  const most = Math.max(...values.map(number).filter(Number.isFinite), 0.1);
  const x = { extent: n.length > 1 ? [n[0], n[n.length - 1]] : [n[0] / 2, n[0] * 2], log: true, label: "length", ticks: lengthTicks, text: String };
  const label = `Entropy of ${headName(i)} against length under each law, and that of random keys`;
  const { element, across, up } = axes(420, 300, x, { extent: [0, most * 1.05], label: "entropy (nats)" }, label);
  element.append(line(n.map((each, l) => [across(each), up(report.uniform_entropy[i][l])]), { class: "equal" }));
  report.laws.forEach((_, k) => {
    const curve = (rows) => n.map((each, l) => [across(each), up(number(rows[i][l][k]))]);
    element.append(line(curve(report.random_entropy), { class: `curve random ${colourClass(k)}` }));
    element.append(line(curve(report.entropy), { class: `curve ${colourClass(k)}` }));
  });
  n.forEach((each, l) => {
    const value = entropyAt(report, i, l, state.multiple);
    if (Number.isFinite(value))
      element.append(draw("circle", { class: "point c0", cx: across(each), cy: up(value), r: l === state.length ? 6 : 4 }));
  });
  return element;
}

function againstScale(report, i) {
  const m = report.multiples;
  const most = Math.max(...report.curve[i].flat().map(number).filter(Number.isFinite), 0.1);
  const x = { extent: [m[0], m[m.length - 1]], log: true, label: "multiple of the scale", ticks: [0.25, 0.5, 1, 2, 4] };
  const label = `Entropy of ${headName(i)} against the multiple of its scale, a curve for each length`;
  const { element, across, up, edge } = axes(420, 300, x, { extent: [0, most * 1.05], label: "entropy (nats)" }, label);
  report.lengths.forEach((n, l) => {
    const points = m.map((each, k) => [across(each), up(number(report.curve[i][l][k]))]);
    element.append(line(points, { class: "curve c1", opacity: l === state.length ? 1 : 0.35 }));
    const first = points[0];
    if (Number.isFinite(first[1])) element.append(draw("text", { x: first[0] + 4, y: first[1] - 4 }, String(n)));
  });
  const at = across(state.multiple);
  element.append(draw("line", { class: "mark", x1: at, x2: at, y1: edge.top, y2: 300 - edge.bottom }));
  const value = entropyAt(report, i, state.length, state.multiple);
  if (Number.isFinite(value)) element.append(draw("circle", { class: "point c0", cx: at, cy: up(value), r: 5 }));
  return element;
}

function histogram(report, i) {
  const counts = report.histogram[i][state.length];
  const most = Math.max(report.uniform_entropy[i][state.length], 1e-6);
  const label = `Distribution of the row entropies of ${headName(i)} at ${lengthName()}`;
  const y = { extent: [0, Math.max(...counts, 1) * 1.05], label: "rows" };
  const { element, across, up, edge } = axes(420, 300, { extent: [0, most], label: "entropy of a row (nats)" }, y, label);
  counts.forEach((count, k) => {
    const [a, b] = [k, k + 1].map((each) => across((most * each) / counts.length));
    element.append(draw("rect", { class: "bar", x: a + 0.5, width: b - a - 1, y: up(count), height: 300 - edge.bottom - up(count) }));
  });
  return element;
}

function byPosition(report, i) {
  const values = report.by_position[i][state.length].map(number);
  const n = report.lengths[state.length];
  const most = Math.max(...values.filter(Number.isFinite), report.uniform_entropy[i][state.length], 0.1);
  const label = `Mean entropy of ${headName(i)} along ${lengthName()}`;
  const y = { extent: [0, most * 1.05], label: "entropy (nats)" };
  const { element, across, up } = axes(420, 300, { extent: [0, n], label: "position of the query" }, y, label);
  const place = (k) => across(((k + 0.5) * n) / values.length);
  element.append(line(values.map((value, k) => [place(k), up(value)]), { class: "curve c1" }));
  values.forEach((value, k) => {
    if (Number.isFinite(value)) element.append(draw("circle", { class: "point c1", cx: place(k), cy: up(value), r: 3 }));
  });
  return element;
}

/** What the lines of the figure against length are. */
function lawKeys(report) {
  const swatch = (name) => draw("svg", { width: 28, height: 10, "aria-hidden": "true" }, draw("path", { d: "M0,5L28,5", class: name }));
  const laws = report.laws.map((law, k) =>
    make("li", {}, swatch(`curve ${colourClass(k)}`), k === 0 ? "as the head has it" : `times ${law.name}`));
  return make("ul", { class: "keys" }, ...laws,
    make("li", {}, swatch("curve random c0"), "random keys under the law of the same colour"),
    make("li", {}, swatch("equal"), "equal weights"));
}

function facts(report, i) {
  const l = state.length;
  const n = report.lengths[l];
  const entropyNow = entropyAt(report, i, l, state.multiple);
  const best = report.best[i];
  const kept = best < 0
    ? "not determined: one length only, a soft-cap or a sink, or no multiple of the scale that keeps it"
    : `${few(report.best_constant[i], 3)} times ${report.laws[best].name}; misses by ${few(report.best_misses[i], 2)} nat`;
  const beta = report.beta[i][l];
  const rows = [
    [`At ${n} tokens${state.multiple === 1 ? "" : `, ${multipleName()} the scale`}`,
      `${few(entropyNow, 3)} nats, ${few(Math.exp(entropyNow), 3)} effective keys of ${few(Math.exp(report.uniform_entropy[i][l]), 4).replace(/\.0$/, "")}`],
    ["Weight of the first key", show("first", number(report.first_key_weight[i][l]))],
    ["Largest weight of a row", `${show("max", number(report.max_weight[i][l]))} (mean)`],
    ["Most weight on one key", `${show("received", number(report.received[i][l]))} of all, on key ${report.received_by[i][l]}`],
    ["Growth", report.growth[i] === null ? "one length only" : `${few(report.growth[i], 2)} nats a doubling`],
    [`Keeps its entropy of ${report.lengths[0]}`, beta === null ? `at no multiple that is known at ${n}` : `at ${few(beta, 3)} times the scale at ${n}`],
    ["Law that keeps it best", kept],
  ];
  return make("dl", {}, ...rows.flatMap(([term, text]) => [make("dt", {}, term), make("dd", {}, text)]));
}

function headPanel(report, name) {
  const i = state.head;
  const n = report.lengths[state.length];
  const file = `layer-${HEADS[i].layer}-head-${HEADS[i].head}`;
  return make("div", { class: "panel" },
    name ? make("h3", {}, name) : null,
    facts(report, i),
    make("div", { class: "figures wide" },
      figure(againstLength(report, i), "entropy against length", `${file}-length`),
      figure(againstScale(report, i), "entropy against the scale", `${file}-scale`),
      figure(histogram(report, i), `rows by entropy at ${n}`, `${file}-rows`),
      figure(byPosition(report, i), `along the text at ${n}`, `${file}-position`)),
    lawKeys(report));
}

function startHead() {
  listeners.push(() => {
    document.getElementById("head-title").textContent = `Head: ${headName(state.head)}`;
    const panels = REPORTS.map((report, k) => headPanel(report, NAMES[k]));
    document.getElementById("head-panels").replaceChildren(...panels);
  });
}
