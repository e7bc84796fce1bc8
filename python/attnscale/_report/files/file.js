// The reader's own file: all of the page is made of its heads, first as they are, then at the multiples of the slider.

const PATIENCE = 120; // seconds that all multiples may take without being asked for
const duration = (seconds) => (seconds < 90 ? `${Math.max(Math.round(seconds), 1)} s` : `${Math.round(seconds / 60)} minutes`);

/** What the page is made of, of the heads of a file: what attnscale report --json has, with multiples to come. */
async function measureFile(file, say, tell) {
  const asked = { file, is_causal: byId("file-causal").checked, laws: SHARED.laws, multiples: SHARED.multiples };
  const { n, head_dim, seconds, version, ...found } = await ask("open", asked);
  const { length } = found.layers;
  say(`${length} heads of ${n} rows, measured in ${duration(seconds.plain)} or so`);
  tell(0);
  const began = performance.now();
  const kept = found.layers.map((_, own) => ({ n, head_dim, is_causal: asked.is_causal, window: null, own }));
  const arrays = {};
  for (let i = 0; i < length; i++) {
    put(arrays, i, await ask("plain", { head: i }, (share) => tell((i + share) / length)));
    tell((i + 1) / length);
  }
  seconds.rest *= (performance.now() - began) / 1000 / seconds.plain;
  const left = SHARED.laws.filter(({ name }) => !found.laws.some((law) => law.name === name)).map(({ name }) => name);
  link.file = asked;
  return {
    schema: "attnscale.report/2", title: `Attention heads of ${file.name}`, plan: "", text: null,
    about: { file: file.name, tokens: String(n), causal: asked.is_causal ? "yes" : "no", ...(left.length && { "laws that the page cannot compute": left.join(", ") }) },
    provenance: { attnscale: version, simd_level: "WebAssembly in this page", created: new Date().toISOString().slice(0, 19) + "Z" },
    summary: [], outliers: [`The map, the plot and the table show it; attnscale report ${file.name} also says it in words.`],
    modules: [], groups: [], multiples: SHARED.multiples, ...found, kept, ...arrays, own: { ...asked, seconds: seconds.rest },
  };
}
function put(arrays, i, numbers) {
  for (const [name, values] of Object.entries(numbers)) (arrays[name] ??= [])[i] = values;
}

function showFileProgress(share) {
  byId("file-progress").hidden = byId("file-stop").hidden = share === null;
  if (share !== null) byId("file-progress").value = share;
}

async function openFile(file) {
  if (link.waiting.size) stopWorker();
  const say = (text) => { byId("file-status").textContent = `${file.name}: ${text}.`; };
  showFileProgress(0);
  try {
    showPage(await measureFile(file, say, showFileProgress));
    byId("title").focus();
  } catch (error) {
    stopWorker(); // it has the file before, if there was one
    say(error.message);
    byId("file-input").value = "";
    showFileProgress(null);
  }
}

/** Measure the heads of the file at all multiples, the open one first; the page fills as they come. */
function startMultiples() {
  const left = new Set(HEADS.map(({ index }) => index));
  let all = DATA.own.seconds <= PATIENCE;
  let running = false;
  const next = () => (left.has(state.head) ? state.head : all ? [...left][0] : undefined);
  const note = () => {
    const done = HEADS.length - left.size;
    byId("file-status").textContent = left.size
      ? `${done} of ${HEADS.length} heads are measured at the multiples of the scale; all of them take ${duration(DATA.own.seconds)} or so. A head that is opened goes first.`
      : `All ${HEADS.length} heads are measured, at all multiples of the scale.`;
    byId("file-all").hidden = running || !left.size;
    showFileProgress(running ? done / HEADS.length : null);
  };
  const run = async () => {
    if (running || next() === undefined) return;
    running = true;
    try {
      for (let i = next(); i !== undefined; i = next()) {
        note();
        put(DATA, i, await ask("curves", { head: i }));
        if (LEFT.aborted) return;
        left.delete(i);
        EXTENTS.clear();
        if (i === state.head || state.multiple !== OWN) tell();
      }
    } catch {
      all = false; // stopped
    }
    running = false;
    if (!LEFT.aborted) note();
  };
  byId("file-all").addEventListener("click", () => {
    all = true;
    run();
  });
  listeners.push(run);
  note();
}

function startFile() {
  const input = byId("file-input");
  input.addEventListener("change", () => input.files.length && openFile(input.files[0]));
  byId("file-stop").addEventListener("click", stopWorker);
  byId("file-back").addEventListener("click", () => {
    link.file = null;
    stopWorker();
    showPage(read("report-data"));
    byId("title").focus();
  });
  for (const type of ["dragover", "drop"])
    document.addEventListener(type, (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      if (type === "drop") openFile(event.dataTransfer.files[0]);
    }, { signal: LEFT });
  if (!DATA.own) return;
  byId("file-back").hidden = false;
  byId("file-causal").checked = DATA.own.is_causal;
  byId("file-causal").addEventListener("change", () => openFile(DATA.own.file));
  startMultiples();
}
