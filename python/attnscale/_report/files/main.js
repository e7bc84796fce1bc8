// The head of the page, its controls, and the first drawing.

const byId = (id) => document.getElementById(id);
const multipleName = () => `${few(state.multiple, 3)} \u00d7`;

function terms(report) {
  const made = report.provenance;
  const rows = Object.entries(report.about).map(([name, text]) => [name, text]);
  rows.push(["lengths", report.lengths.join(", ")], ["laws", report.laws.map((law) => law.name).join(", ")]);
  rows.push(["made by", `attnscale ${made.attnscale}, NumPy ${made.numpy}, ${made.simd_level}, ${made.created}`]);
  rows.push(["seed", made.seed || "none: nothing is random"]);
  return rows;
}

function writeHead() {
  for (const [k, report] of REPORTS.entries()) {
    if (several) byId("about").append(make("dt", {}, "report"), make("dd", {}, make("strong", {}, NAMES[k])));
    for (const [name, text] of terms(report)) byId("about").append(make("dt", {}, name), make("dd", {}, text));
  }
  const sentence = (text) => text[0].toUpperCase() + text.slice(1);
  const said = (DATA.differences || []).map(sentence);
  for (const [k, report] of REPORTS.entries())
    for (const text of report.outliers) said.push(several ? `${NAMES[k]}: ${text}` : sentence(text));
  byId("said").append(...said.map((text) => make("li", {}, text)));
  const plans = REPORTS.map((report, k) => report.plan && (several ? `${NAMES[k]}\n` : "") + report.plan).filter(Boolean);
  byId("plan").textContent = plans.join("\n\n");
  byId("plan-details").hidden = !plans.length;
  const causal = REPORTS.some((report) => report.about.causal === "yes");
  byId("foot").textContent =
    "Entropies are in nats; effective keys are exp(entropy). An entropy at a length is the mean over its queries" +
    (causal ? ", of causal heads over the last eighth of them, which see between 7/8 and all of the keys" : "") +
    ". Laws and multiples act on the head\u2019s own scale. Random keys are independent and uniform on a sphere: the exact " +
    "expectation for as many keys under the same law. The law that keeps the entropy best has a constant of the head.";
}

function writeControls() {
  const errors = REPORTS.map((report) => report.interpolation_error).filter((error) => error !== null);
  const error = errors.length ? `at most ${Math.max(...errors).toPrecision(1)} nat off where it was checked` : "not known";
  byId("multiple-note").textContent =
    `The scale changes entropy, effective keys and growth. Measured at ${SHARED.multiples.length} multiples and ` +
    `interpolated between them, ${error}.`;
  listeners.push(() => {
    byId("length-out").textContent = lengthName();
    byId("length").setAttribute("aria-valuetext", lengthName());
    byId("multiple-out").textContent = multipleName();
    byId("multiple").setAttribute("aria-valuetext", `${few(state.multiple, 3)} times the scale`);
  });
}

function startControls() {
  const length = byId("length");
  length.max = SHARED.lengths.length - 1;
  length.value = state.length;
  length.disabled = SHARED.lengths.length === 1;
  length.addEventListener("input", () => choose({ length: Number(length.value) }));
  const multiple = byId("multiple");
  multiple.addEventListener("input", () => choose({ multiple: 2 ** Number(multiple.value) }));
  byId("reset").addEventListener("click", () => {
    multiple.value = 0;
    choose({ multiple: 1 });
  });
  for (const [id, name] of [["colour", "colour"], ["scatter-x", "x"], ["scatter-y", "y"]]) {
    const select = byId(id);
    for (const [value, { label }] of Object.entries(QUANTITIES)) select.append(make("option", { value }, label));
    select.value = state[name];
    select.addEventListener("change", () => choose({ [name]: select.value }));
  }
  for (const form of document.querySelectorAll("form")) form.addEventListener("submit", (event) => event.preventDefault());
}

// The head that spreads fastest is open first.
state.head = HEADS.reduce((best, { index }) => (growth(SHARED, index) > growth(SHARED, best) ? index : best), 0);
writeHead();
startControls();
writeControls();
startMaps();
startScatter();
startHead();
startTable();
tell();
