// The head of the page, its controls, and the first drawing.

function terms(report) {
  const made = report.provenance;
  const rows = Object.entries(report.about).map(([name, text]) => [name, text]);
  rows.push(["lengths", report.lengths.join(", ")], ["laws", report.laws.map((law) => law.name).join(", ")]);
  rows.push(["made by", `attnscale ${made.attnscale}, ${made.numpy ? `NumPy ${made.numpy}, ` : ""}${made.simd_level}, ${made.created}`]);
  rows.push(["seed", made.seed || "none: nothing is random"]);
  return rows;
}

function writeHead() {
  byId("title").textContent = document.title = DATA.title;
  const all = REPORTS.map(terms);
  const names = [...new Set(all.flat().map(([name]) => name))];
  const text = (rows, name) => (rows.find(([each]) => each === name) || ["", ""])[1];
  byId("about").append(factList(names.map((name) => [name, all.map((rows) => text(rows, name))])));
  const sentence = (said) => said[0].toUpperCase() + said.slice(1);
  const whose = (k, said) => (several ? `${NAMES[k]}: ${said}` : sentence(said));
  const every = (name) => REPORTS.flatMap((report, k) => report[name].map((said) => whose(k, said)));
  byId("summary").append(...every("summary").map((said) => make("p", {}, said)));
  const said = [...(DATA.differences || []).map(sentence), ...every("outliers")];
  if (!said.length && !DATA.own) said.push("No head is beyond what equal weights and random keys explain.");
  byId("said").append(...said.map((each) => make("li", {}, each)));
  const plans = REPORTS.map((report, k) => report.plan && (several ? `${NAMES[k]}\n` : "") + report.plan).filter(Boolean);
  byId("plan").textContent = plans.join("\n\n");
  byId("plan-details").hidden = !plans.length;
  const causal = REPORTS.some((report) => report.about.causal !== "no");
  byId("foot").textContent =
    "Entropies are in nats; effective keys are exp(entropy). An entropy at a length is the mean over its queries" +
    (causal ? ", of causal heads over the last eighth of them, which see between 7/8 and all of the keys" : "") +
    ". Laws and multiples act on the head\u2019s own scale, \u00d7 1. Random keys are independent and uniform on a sphere: the exact " +
    "expectation for as many keys under the same law. The law that keeps the entropy best has a constant of the head.";
}

function writeControls() {
  byId("multiple-note").textContent =
    `Everything but what says \u201cat \u00d7 1\u201d follows the scale. It stops at the ${SHARED.multiples.length} multiples ` +
    "at which the heads, and random keys, were measured.";
  listeners.push(() => {
    byId("length-out").textContent = lengthName();
    byId("length").setAttribute("aria-valuetext", lengthName());
    byId("multiple-out").textContent = multipleName();
    byId("multiple").setAttribute("aria-valuetext", `${few(SHARED.multiples[state.multiple], 3)} times the scale`);
    byId("length").value = state.length;
    byId("multiple").value = state.multiple;
    byId("random").checked = state.random;
    for (const [id, name] of SELECTS) byId(id).value = state[name];
  });
}

const SELECTS = [["colour", "colour"], ["scatter-x", "x"], ["scatter-y", "y"]];

function startControls() {
  for (const [id, list] of [["length", SHARED.lengths], ["multiple", SHARED.multiples]]) {
    byId(id).max = list.length - 1;
    byId(id).disabled = list.length === 1;
    byId(id).addEventListener("input", () => choose({ [id]: Number(byId(id).value) }));
  }
  byId("reset").addEventListener("click", () => choose({ multiple: OWN }));
  for (const [id, name] of SELECTS) {
    for (const [value, { label }] of Object.entries(QUANTITIES)) byId(id).append(make("option", { value }, label));
    byId(id).addEventListener("change", () => choose({ [name]: byId(id).value }));
  }
  for (const form of document.querySelectorAll("form")) form.addEventListener("submit", (event) => event.preventDefault());
}

// The head that spreads fastest is open first.
document.body.classList.toggle("several", several);
state.head = HEADS.reduce((best, { index }) => (growth(SHARED, index) > growth(SHARED, best) ? index : best), 0);
writeHead();
startControls();
writeControls();
startMaps();
startScatter();
startHead();
startText();
startTable();
startAddress();
if (typeof startMeasure === "function") { // a page that carries heads
  for (const id of ["file", "measure"]) byId(id).hidden = !link.worker;
  if (link.worker) for (const start of [startMeasure, startFile]) start();
}
tell();
let width = plotWidth();
window.addEventListener("resize", () => {
  if (plotWidth() === width) return;
  width = plotWidth();
  tell();
}, { signal: LEFT });
