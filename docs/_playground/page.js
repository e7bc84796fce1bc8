// Three things to try. Each has a form, a worker of its own with the core in it, and a figure.

const byId = (id) => document.getElementById(id);
const HIGH = 320; // pixels of a figure
function refuse(text) {
  throw new Error(text);
}
const spaced = (from, to, count) =>
  [...new Set(Array.from({ length: count }, (_, k) => Math.round(from * (to / from) ** (k / (count - 1)))))];

/** An input with its label, and for a slider its number. */
function control(id, [name, label, attributes]) {
  const input = make("input", { id: `${id}-${name}`, name, ...attributes });
  const text = make("label", { for: input.id }, label);
  if (attributes.type === "checkbox") return make("p", { class: "control" }, input, " ", text);
  if (attributes.type !== "range") return make("p", { class: "control" }, text, " ", input);
  const number = make("output", { for: input.id });
  const tell = () => { number.textContent = tickText(Number(input.value)); };
  input.addEventListener("input", tell);
  tell();
  return make("p", { class: "control slider" }, text, " ", number, input);
}

/**
 * Something to try. `compute` reads the form, asks the worker, and calls `show` with what draws the figure in some
 * width, and the share that is done; it starts anew, with what changed, after each change of the form.
 */
function offer(id, name, fields, { wait = 200, again = "" }, compute) {
  const core = newCore();
  if (!core.starts) return byId(id).append("This browser has no WebAssembly, which is needed here.");
  const form = make("form", { class: "row", "aria-label": `Choices: ${name}`, onsubmit: (event) => event.preventDefault() },
    ...fields.map((each) => (each ? control(id, each) : make("span", { class: "break" }))));
  const status = make("p", { role: "status" });
  const progress = make("progress", { max: 1, value: 0, "aria-label": "How much is computed" });
  const stop = make("button", { type: "button", onclick: () => core.stop() }, "Stop");
  const output = make("div", { class: "output" });
  const now = { turn: 0, seed: 0, draw: null, width: 0 };
  const number = (name) => Number(form.elements[name].value);
  const read = {
    number,
    text: (name) => form.elements[name].value.trim(),
    checked: (name) => form.elements[name].checked,
    integer(name, least, most) {
      const { value, labels: [{ textContent }] } = form.elements[name];
      if (value === "" || !Number.isInteger(number(name)) || number(name) < least || number(name) > most)
        refuse(`${textContent} must be an integer from ${least} to ${most}, got ${value || "nothing"}`);
      return number(name);
    },
  };
  const busy = (share) => {
    progress.hidden = stop.hidden = share >= 1;
    progress.value = share;
  };
  const draw = () => {
    now.width = output.clientWidth;
    const open = [...output.querySelectorAll("details")].map((each) => each.open);
    output.replaceChildren(...(now.draw ? now.draw(Math.max(now.width - 16, 240)) : []));
    output.querySelectorAll("details").forEach((each, k) => { each.open = open[k]; });
  };
  async function run() {
    const turn = ++now.turn;
    const isOld = () => turn !== now.turn;
    const ask = async (...question) => {
      const found = await core.ask(...question);
      return isOld() ? new Promise(() => {}) : found; // what is old waits for ever
    };
    const show = (drawn, share = 1) => {
      now.draw = drawn;
      draw();
      status.textContent = "";
      busy(share);
    };
    try {
      await compute(read, ask, show, now.seed);
    } catch ({ message }) {
      if (isOld()) return;
      status.textContent = message.replace(/^[a-z](?=[a-z])/, (each) => each.toUpperCase()) + (message.endsWith("?") ? "" : ".");
      if (message !== "stopped") now.draw = null;
      draw();
      busy(1);
    }
  }
  let waiting;
  form.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(run, wait);
  });
  if (again) form.append(make("p", { class: "control" }, make("button", { type: "button", onclick: () => { now.seed++; run(); } }, again)));
  byId(id).replaceChildren(form, make("div", { class: "row state" }, status, progress, stop), output);
  window.addEventListener("resize", () => { if (output.clientWidth !== now.width) draw(); });
  run();
}

/** A point with its error bar of two standard errors to both sides. */
const point = (x, up, { value, standardError }, look) => [
  draw("line", { class: `curve ${look}`, x1: x, x2: x, y1: up(value - 2 * standardError), y2: up(value + 2 * standardError) }),
  draw("circle", { class: `point ${look}`, cx: x, cy: up(value), r: 4 }),
];

/** What a figure shows, as a table. */
function numbers(columns, rows) {
  const row = (tag, [first, ...cells], scope) => make("tr", {}, make("th", { scope: scope || "row" }, first), ...cells.map((each) => make(tag, { scope }, each)));
  const table = make("table", {}, make("thead", {}, row("th", columns, "col")), make("tbody", {}, ...rows.map((each) => row("td", each))));
  return make("div", { class: "table" }, table);
}
const folded = (text, content) => make("details", {}, make("summary", {}, text), content);
const code = (text) => folded("The same in Python", make("pre", { class: "python" }, text));
const withError = ({ value, standardError }) => `${value.toFixed(4)} \u00b1 ${standardError.toFixed(4)}`;

// ---- entropy against length --------------------------------------------------------------------

const OFFERED = ["standard", "log_n", "annealed"];
const MOST_KEYS = 65536;

function entropyFigure({ laws, lengths, exact, drawn, samples, head_dim, seed }, width) {
  const looks = laws.map((_, i) => `c${i + 1}`);
  const [from, to] = [lengths[0], lengths[lengths.length - 1]];
  const x = { extent: [from, to], log: true, label: "keys, n" };
  const y = { extent: [0, Math.log(to) * 1.05], label: "entropy (nats)" };
  const names = laws.map((law) => (Number.isNaN(Number(law)) ? law : `${law} / \u221ad`));
  const { element, across, up } = axes(width, HIGH, x, y, `Entropy of random rows against their number of keys, under ${names.join(", ")}`);
  const lines = [{ values: lengths.map(Math.log), look: "equal", name: "equal weights, ln n" },
    ...exact.map((values, i) => ({ values, look: `curve ${looks[i]}`, name: names[i] }))];
  for (const { values, look } of lines) element.append(line(values.map((value, l) => [across(lengths[l]), up(value)]), { class: look }));
  for (const [n, found] of drawn) element.append(...found.flatMap((each, i) => point(across(n), up, each, looks[i])));
  const caption = `lines: exact expectation; points: mean of ${samples} rows, with two standard errors; d = ${head_dim}`;
  const quoted = laws.map((law) => (Number.isNaN(Number(law)) ? `"${law}"` : `${law} / ${head_dim}**0.5`)).join(", ");
  const cell = (n, each, i) => `${withError(each)}, exact ${exact[i][lengths.indexOf(n)].toFixed(4)}`;
  const table = numbers(["n", ...names], drawn.map(([n, found]) => [String(n), ...found.map((each, i) => cell(n, each, i))]));
  return [figure(element, caption, "entropy", lineKeys(lines)), folded("The points as numbers, in nats, with one standard error", table),
    code(`at.montecarlo.entropy_vs_length([${drawn.map(([n]) => n).join(", ")}],\n    law=[${quoted}], head_dim=${head_dim}, samples=${samples}, rng=${seed})`)];
}
byId("try-entropy").after(make("datalist", { id: "laws" }));
offer("try-entropy", "entropy", [
  ["head_dim", "d", { type: "number", min: 2, max: 4096, value: 64 }],
  ["from", "n from", { type: "number", min: 1, max: MOST_KEYS, value: 16 }],
  ["to", "n to", { type: "number", min: 2, max: MOST_KEYS, value: 4096 }],
  ["samples", "rows a point", { type: "number", min: 2, max: 10000, value: 200 }],
  null,
  ...OFFERED.map((law) => [law, law, { type: "checkbox", checked: "" }]),
  ["law", "another law, or a multiple of 1/\u221ad", { type: "text", list: "laws", spellcheck: "false", placeholder: "such as log_n(base=64) or 1.5" }],
], { wait: 400, again: "Other keys" }, async (read, ask, show, seed) => {
  const head_dim = read.integer("head_dim", 2, 4096);
  const from = read.integer("from", 1, MOST_KEYS - 1);
  const lengths = spaced(from, read.integer("to", from + 1, MOST_KEYS), 17);
  const samples = read.integer("samples", 2, 10000);
  const laws = [...new Set([...OFFERED.filter(read.checked), read.text("law")].filter(Boolean))];
  if (!laws.length) refuse("choose a law, or type one");
  const found = { laws, lengths, samples, head_dim, seed, exact: [], drawn: [] };
  if (!byId("laws").children.length) byId("laws").append(...(await ask("laws")).map((value) => make("option", { value })));
  const points = lengths.filter((_, l) => l % 2 === 0 || lengths.length < 9);
  const tell = () => show((width) => entropyFigure(found, width), (found.exact.length + found.drawn.length) / (laws.length + points.length));
  for (const law of laws) {
    found.exact.push(await ask("expected", { law, head_dim, lengths }));
    tell();
  }
  for (const n of points) {
    found.drawn.push([n, await ask("drawn", { laws, head_dim, n, samples, seed })]);
    tell();
  }
});

// ---- distances after a projection --------------------------------------------------------------

const ERRORS = [...spaced(50, 999, 60).map((each) => each / 1000), 0.5];

function projectionFigure({ n, most, thumb, least, measured, samples }, width) {
  const all = measured.flatMap(({ value, standardError }) => value + 2 * standardError);
  const x = { extent: [8, most], log: true, label: "dimensions, k" };
  const y = { extent: [0, Math.max(1.5, ...all) * 1.05], label: "change of a squared distance" };
  const { element, across, up, edge } = axes(width, HIGH, x, y, `Largest change of a squared distance between ${n} points against the dimensions that they are projected to`);
  const at = across(thumb);
  const lines = [
    { points: spaced(8, most, 60).map((k) => [k, Math.sqrt(2 / k)]), look: "equal", name: "spread of one pair, \u221a(2/k)" },
    { points: least.map((k, i) => [k, ERRORS[i]]).filter(([k], i) => k >= 8 && k <= most && i < ERRORS.length - 1), look: "curve c2", name: "what the lemma grants, \u03b5(k)" },
  ];
  for (const { points, look } of lines) element.append(line(points.map(([k, change]) => [across(k), up(change)]), { class: look }));
  if (thumb <= most) element.append(
    draw("line", { class: "mark", x1: at, x2: at, y1: edge.top, y2: HIGH - edge.bottom }),
    draw("text", { x: at + 5, y: edge.top + 12 }, `8 ln n = ${few(thumb, 3)}`));
  for (const each of measured) element.append(...point(across(each.k), up, each, "c1"));
  const caption = `points: the worst of ${(n * (n - 1)) / 2} pairs, mean of ${samples} projections, with two standard errors`;
  const there = measured.find(({ k }) => k === Math.round(thumb));
  const said = there && make("p", {}, `In ${there.k} dimensions, which is 8 ln n, the worst pair changes its squared distance by `,
    make("strong", {}, `${few(100 * there.value, 3)} %`), `; to promise less than 50 %, the lemma asks for ${least[ERRORS.length - 1]} dimensions.`);
  const table = numbers(["k", "worst change"], measured.map((each) => [String(each.k), withError(each)]));
  return [...(said ? [said] : []), figure(element, caption, "projection", lineKeys([...lines, { look: "curve c1", name: "measured, worst pair" }])),
    folded("The points as numbers, with one standard error", table),
    code(`at.montecarlo.jl_distortion(np.eye(${n}), k=[${measured.map(({ k }) => k).join(", ")}], samples=${samples})`)];
}

offer("try-projection", "projection", [
  ["n", "points", { type: "number", min: 3, max: 1000, value: 200 }],
  ["most", "k to", { type: "number", min: 16, max: 1024, value: 512 }],
  ["samples", "projections", { type: "number", min: 2, max: 50, value: 4 }],
], { wait: 400, again: "Other projections" }, async (read, ask, show, seed) => {
  const [n, most, samples] = [read.integer("n", 3, 1000), read.integer("most", 16, 1024), read.integer("samples", 2, 50)];
  const found = { n, most, samples, measured: [], ...(await ask("estimates", { n, errors: ERRORS })) };
  const dims = [...new Set([...spaced(8, most, 8), Math.min(Math.round(found.thumb), most)])].sort((a, b) => a - b);
  for (const k of dims) {
    const changes = [];
    for (let i = 0; i < samples; i++) {
      show((width) => projectionFigure(found, width), (found.measured.length + i / samples) / dims.length);
      changes.push(await ask("projected", { n, k, seed: 1000 * seed + i }));
    }
    const value = changes.reduce((sum, each) => sum + each / samples, 0);
    const variance = changes.reduce((sum, each) => sum + (each - value) ** 2 / (samples - 1), 0);
    found.measured.push({ k, value, standardError: Math.sqrt(variance / samples) });
  }
  show((width) => projectionFigure(found, width));
});

// ---- six keys ----------------------------------------------------------------------------------

const RULES = ["softmax", "entmax-1.5", "sparsemax"];
const SCORES = [2, 1.2, 0.6, 0, -0.8, -1.5];

function weightsFigure(found, width) {
  const x = { extent: [0.5, 6.5], label: "key", ticks: SCORES.map((_, i) => i + 1) };
  const { element, across, up } = axes(width, HIGH, x, { extent: [0, 1], label: "weight" }, `Weights of six keys under ${RULES.join(", ")}; the table has the numbers`);
  const wide = (across(2) - across(1)) / 4;
  found.forEach(({ weights }, r) => weights.forEach((weight, i) =>
    element.append(draw("rect", { class: `fill${r + 1}`, x: across(i + 1) + (r - 1.5) * wide, width: wide - 1, y: up(weight), height: up(0) - up(weight) }))));
  const swatch = (r) => draw("svg", { width: 10, height: 10, "aria-hidden": "true" }, draw("rect", { class: `fill${r + 1}`, width: 10, height: 10 }));
  const row = (name, text) => [name, ...found.map(text)];
  const table = numbers(["key", ...RULES.map((rule, r) => make("span", {}, swatch(r), ` ${rule}`))], [
    ...SCORES.map((_, i) => row(String(i + 1), ({ weights }) => weights[i].toFixed(4))),
    row("entropy (nats)", ({ entropy }) => entropy.toFixed(4)),
    row("effective keys", ({ entropy }) => Math.exp(entropy).toFixed(2)),
    row("keys with a weight", ({ support }) => String(support)),
  ]);
  return [figure(element, "weights under the three rules", "six-keys"), table];
}

offer("try-keys", "six keys", [
  ...SCORES.map((value, i) => [`score${i}`, `score ${i + 1}`, { type: "range", min: -4, max: 4, step: 0.1, value }]),
  ["scale", "scale", { type: "range", min: 0, max: 4, step: 0.05, value: 1 }],
], { wait: 0 }, async (read, ask, show) => {
  const found = await ask("weights", { scores: SCORES.map((_, i) => read.number(`score${i}`)), scale: read.number("scale") });
  show((width) => weightsFigure(found, width));
});
