// One head: entropy against length and against the scale, its rows, and what keeps its entropy.

const HIGH = 320; // pixels of a figure
const colourClass = (k) => `c${k % 6}`;
const lengthTicks = SHARED.lengths.length <= 8 ? SHARED.lengths : undefined;

/** An axis from 0 to the most of some numbers of all reports, so that figures beside each other share it. */
function upTo(label, numbers) {
  const known = REPORTS.flatMap(numbers).flat(Infinity).map(number).filter(Number.isFinite);
  return { extent: [0, Math.max(...known, 0.1) * 1.05], label };
}

/** The lines of the figure against length: what each has at every length, its look, and its name. */
function linesAgainstLength(report, i) {
  const n = report.lengths;
  const moved = state.multiple !== OWN;
  const curve = (name, m) => n.map((_, l) => at(report, name, i, l, m));
  const law = (rows, k) => n.map((_, l) => number(rows[i][l][k]));
  const lines = [{ values: n.map((_, l) => number(report.uniform_entropy[i][l])), look: "equal", name: "equal weights" }];
  if (state.random)
    report.laws.forEach((each, k) => {
      if (k) lines.push({ values: law(report.random_entropy, k), look: `curve random ${colourClass(k)}`, name: `random keys under ${each.name}` });
    });
  const random = moved ? `random keys, at ${multipleName()}` : "random keys";
  lines.push({ values: curve("random_curve", state.multiple), look: "curve random c0", name: random });
  report.laws.forEach((each, k) => {
    if (k) lines.push({ values: law(report.entropy, k), look: `curve ${colourClass(k)}`, name: `under ${each.name}${asMeasured()}` });
  });
  if (moved) lines.push({ values: curve("curve", OWN), look: "curve own", name: `the head${asMeasured()}` });
  lines.push({ values: curve("curve", state.multiple), look: "curve head c0", name: moved ? `the head, at ${multipleName()}` : "the head" });
  return lines;
}

function againstLength(report, i) {
  const n = report.lengths;
  const x = { extent: n.length > 1 ? [n[0], n[n.length - 1]] : [n[0] / 2, n[0] * 2], log: true, label: "length", ticks: lengthTicks, text: String };
  const y = upTo("entropy (nats)", (each) => linesAgainstLength(each, i).map((one) => one.values));
  const label = `Entropy of ${headName(i)} against length${atMultiple()}, under each law, and that of random keys`;
  const { element, across, up } = axes(plotWidth(), HIGH, x, y, label);
  const lines = linesAgainstLength(report, i);
  for (const { values, look } of lines)
    element.append(line(values.map((value, l) => [across(n[l]), up(value)]), { class: look }));
  lines[lines.length - 1].values.forEach((value, l) => {
    if (Number.isFinite(value))
      element.append(draw("circle", { class: "point c0", cx: across(n[l]), cy: up(value), r: l === state.length ? 6 : 4 }));
  });
  return { element, below: lineKeys(lines) };
}

function againstScale(report, i) {
  const m = report.multiples;
  const x = { extent: [m[0], m[m.length - 1]], log: true, label: "multiple of the scale", ticks: [0.25, 0.5, 1, 2, 4] };
  const label = `Entropy of ${headName(i)} against the multiple of its scale, a curve for each length`;
  const { element, across, up, edge } = axes(plotWidth(), HIGH, x, upTo("entropy (nats)", (each) => each.curve[i]), label);
  const starts = report.lengths.map((_, l) => up(at(report, "curve", i, l, 0)) - 4);
  const names = apart(starts.map((y) => (Number.isFinite(y) ? y : HIGH)), 12, edge.top + 8, HIGH - edge.bottom - 2);
  report.lengths.forEach((n, l) => {
    const points = m.map((each, k) => [across(each), up(at(report, "curve", i, l, k))]);
    element.append(line(points, { class: "curve c1", opacity: l === state.length ? 1 : 0.35 }));
    if (l === state.length)
      for (const [cx, cy] of points) if (Number.isFinite(cy)) element.append(draw("circle", { class: "measured", cx, cy, r: 2 }));
    if (Number.isFinite(starts[l])) element.append(draw("text", { x: points[0][0] + 4, y: names[l] }, String(n)));
  });
  const there = across(m[state.multiple]);
  element.append(draw("line", { class: "mark", x1: there, x2: there, y1: edge.top, y2: HIGH - edge.bottom }));
  const value = entropy(report, i);
  if (Number.isFinite(value)) element.append(draw("circle", { class: "point c0", cx: there, cy: up(value), r: 5 }));
  return { element };
}

function histogram(report, i) {
  const counts = report.histogram[i][state.length];
  const most = Math.max(report.uniform_entropy[i][state.length], 1e-6);
  const label = `Distribution of the row entropies of ${headName(i)} at ${lengthName()}${asMeasured()}`;
  const y = upTo("rows", (each) => each.histogram[i][state.length]);
  const { element, across, up, edge } = axes(plotWidth(), HIGH, { extent: [0, most], label: "entropy of a row (nats)" }, y, label);
  counts.forEach((count, k) => {
    const [a, b] = [k, k + 1].map((each) => across((most * each) / counts.length));
    element.append(draw("rect", { class: "bar", x: a + 0.5, width: b - a - 1, y: up(count), height: HIGH - edge.bottom - up(count) }));
  });
  return { element };
}

function byPosition(report, i) {
  const values = report.by_position[i][state.length].map(number);
  const n = report.lengths[state.length];
  const label = `Mean entropy of ${headName(i)} along ${lengthName()}${asMeasured()}`;
  const y = upTo("entropy (nats)", (each) => [each.by_position[i][state.length], each.uniform_entropy[i][state.length]]);
  const { element, across, up } = axes(plotWidth(), HIGH, { extent: [0, n], label: "position of the query" }, y, label);
  const place = (k) => across(((k + 0.5) * n) / values.length);
  element.append(line(values.map((value, k) => [place(k), up(value)]), { class: "curve c1" }));
  values.forEach((value, k) => {
    if (Number.isFinite(value)) element.append(draw("circle", { class: "point c1", cx: place(k), cy: up(value), r: 3 }));
  });
  return { element };
}

/** Each fact of a head: its name, and its text for a report. */
function facts() {
  const l = state.length;
  const n = SHARED.lengths[l];
  const rise = (value) => (Number.isFinite(value) ? `${few(value, 2)} nats a doubling` : "one length only");
  const kept = (report, i) => nearlyEqual(report, i) ? "weights nearly equal: no law is judged by them" : report.best[i] < 0
    ? "not determined: one length only, a soft-cap or a sink, or no multiple of the scale that keeps it"
    : `${few(report.best_constant[i], 3)} times ${report.laws[report.best[i]].name}; misses by ${few(report.best_misses[i], 2)} nat`;
  const keys = (value) => (value < 10 ? few(value, 2).replace(/\.0$/, "") : String(Math.round(value)));
  return [
    [`At ${n} tokens${atMultiple()}`, (r, i) =>
      `${few(entropy(r, i), 3)} nats, ${few(Math.exp(entropy(r, i)), 3)} effective keys of ${keys(Math.exp(r.uniform_entropy[i][l]))}`],
    ["Random keys, same length and scale", (r, i) => {
      const value = chosen("random_curve")(r, i);
      return `${few(value, 3)} nats, ${few(Math.exp(value), 3)} effective keys`;
    }],
    ["Weight of the first key", (r, i) => show("first", QUANTITIES.first.value(r, i))],
    ["Largest weight of a row", (r, i) => `${show("max", QUANTITIES.max.value(r, i))} (mean)`],
    ["Most weight on one key", (r, i) =>
      `${show("received", QUANTITIES.received.value(r, i))} of all, on key ${chosen("received_by_curve")(r, i)}`],
    ["Growth", (r, i) => rise(growth(r, i))],
    [`Keeps its entropy of ${SHARED.lengths[0]}${asMeasured()}`, (r, i) =>
      nearlyEqual(r, i) ? "weights nearly equal: no scale is judged by them" : r.beta[i][l] === null ? `at no multiple that is known at ${n}` : `at ${few(r.beta[i][l], 3)} times the scale at ${n}`],
    [`Law that keeps it best${asMeasured()}`, kept],
  ];
}

/** Names and texts: a list for one report, a table for two, which says once what is the same in both. */
function factList(rows) {
  if (!several) return make("dl", {}, ...rows.flatMap(([name, [text]]) => [make("dt", {}, name), make("dd", {}, text)]));
  const cells = ([a, b]) => (a === b ? [make("td", { colspan: 2 }, `both: ${a}`)] : [make("td", {}, a), make("td", {}, b)]);
  const header = make("tr", {}, make("td", {}), ...NAMES.map((name) => make("th", { scope: "col" }, name)));
  return make("table", { class: "facts" }, make("thead", {}, header),
    make("tbody", {}, ...rows.map(([name, texts]) => make("tr", {}, make("th", { scope: "row" }, name), ...cells(texts)))));
}

const FIGURES = [
  { make: againstLength, file: "length", caption: () => `entropy against length${atMultiple()}` },
  { make: againstScale, file: "scale", caption: () => "entropy against the scale" },
  { make: histogram, file: "rows", caption: () => `rows by entropy at ${lengthName()}${asMeasured()}` },
  { make: byPosition, file: "position", caption: () => `along the text at ${lengthName()}${asMeasured()}` },
];

function startHead() {
  const random = document.getElementById("random");
  random.addEventListener("change", () => choose({ random: random.checked }));
  listeners.push(() => {
    const i = state.head;
    const file = `layer-${HEADS[i].layer}-head-${HEADS[i].head}`;
    document.getElementById("head-title").textContent = `Head: ${headName(i)}`;
    document.getElementById("head-facts").replaceChildren(
      factList(facts().map(([name, text]) => [name, REPORTS.map((report) => text(report, i))])));
    // With two reports, the same figure of both is side by side.
    const figures = FIGURES.flatMap((each) => REPORTS.map((report, k) => {
      const { element, below } = each.make(report, i);
      const name = several ? `${NAMES[k]}: ${each.caption()}` : each.caption();
      return figure(element, name, `${file}-${each.file}${several ? `-${k + 1}` : ""}`, below);
    }));
    document.getElementById("head-panels").replaceChildren(...figures);
  });
}
