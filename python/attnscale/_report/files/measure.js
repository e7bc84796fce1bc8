// Measure again: a head of the page, or of a reader's own file, at any scale, law and length, by the core itself.

const MAP_SIZE = 256; // rows and columns of the map of weights at most
/** What was asked of the worker, and what it found: `file` are the reader's own heads, null those of the page. */
const mine = { file: null, shown: null, row: null, asked: 0, worker: null, started: null };

const asSentence = (text) => text[0].toUpperCase() + text.slice(1) + (text.endsWith("?") ? "" : ".");

/** Ask the worker; the promise is kept with its answer, or broken with one line. A newer question ends it. */
function ask(task, content, transfer = []) {
  const id = ++mine.asked;
  return new Promise((keep, fail) => {
    const hear = ({ data }) => {
      if (data.id !== id) return;
      if (data.share !== undefined) return showProgress(data.share);
      mine.worker.removeEventListener("message", hear);
      if (data.error === undefined) keep(data.found);
      else fail(new Error(data.error));
    };
    mine.worker.addEventListener("message", hear);
    mine.worker.postMessage({ id, task, ...content }, transfer);
  });
}

function startWorker() {
  const text = [byId("core-module").textContent, byId("core-worker").textContent].join("\n");
  const address = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  mine.worker = new Worker(address);
  const wasm = bytes(byId("core-wasm").textContent.trim());
  mine.started = ask("start", { wasm }, [wasm.buffer]);
  return mine.started;
}

/** End what is being measured: the worker does one thing at a time, so it goes, and a new one comes. */
function stopWorker() {
  mine.worker.terminate();
  startWorker();
  showProgress(null);
}

/** A head that the page carries; undefined or null where it carries none. */
function keptHead(i) {
  const head = (SHARED.kept || [])[i];
  const decode = (text) => halves(new Uint16Array(bytes(text).buffer));
  return head && { ...head, query: decode(head.query), key: decode(head.key) };
}

/** What stands in the form, as the worker takes it; an Error says what is wrong with it. */
function wanted() {
  const head = mine.file ? mine.file.at(Number(byId("measure-head").value)) : keptHead(state.head);
  if (!head) refuse(SHARED.kept
    ? "the page does not carry this head: it has a mask or a soft-cap, or does not attend to its own rows"
    : "the page carries no heads: attnscale report --with-heads puts them in, or open a file of your own");
  const n = Number(byId("measure-length").value);
  if (!Number.isInteger(n) || n < 2 || n > head.n) refuse(`the length must be an integer from 2 to ${head.n}, got ${byId("measure-length").value || "nothing"}`);
  const law = byId("measure-law").value.trim();
  if (!law) refuse("the scale must be a number or a law, such as 1.5 or log_n");
  return { head, question: { n, law, head_dim: head.head_dim, is_causal: head.is_causal, window: head.window } };
}

async function measure() {
  const status = byId("measure-status");
  let asked;
  try {
    await mine.started;
    const { head, question } = wanted();
    const { n, head_dim } = question;
    const [query, key] = [head.query, head.key].map((x) => x.slice(0, n * head_dim));
    showProgress(0);
    asked = mine.asked + 1;
    const found = await ask("measure", { ...question, query, key, map: MAP_SIZE });
    if (asked !== mine.asked) return;
    showProgress(null);
    status.textContent = "";
    showMeasured({ ...found, ...question, name: mine.file ? `head ${byId("measure-head").value} of ${mine.file.name}` : headName(state.head) });
  } catch (error) {
    status.textContent = asSentence(error.message);
    for (const id of ["measure-panels", "measure-keys"]) byId(id).replaceChildren();
    byId("measure-rows").hidden = true;
    showProgress(null);
  }
}

function showProgress(share) {
  byId("measure-progress").hidden = byId("measure-stop").hidden = share === null;
  if (share !== null) byId("measure-progress").value = share;
}

const mean = (values) => values.reduce((sum, each) => sum + each, 0) / values.length;

function showMeasured(found) {
  mine.shown = found;
  const { n, entropy, max_weight, first_key, counted } = found;
  const nats = mean(entropy.slice(n - counted));
  const rows = counted < n ? `, mean of the last ${counted} rows` : "";
  const texts = [
    [`${found.name} at ${n} tokens, scale ${found.law}`, `${few(nats, 4)} nats, ${few(Math.exp(nats), 4)} effective keys${rows}`],
    ["Largest weight of a row", `${show("max", mean(max_weight.slice(n - counted)))} (mean)`],
    ["Weight of the first key", `${show("first", mean(first_key.slice(n - counted)))} (mean)`],
  ];
  byId("measure-row").max = n - 1;
  byId("measure-rows").hidden = false;
  mine.row = mine.row === null ? n - 1 : Math.min(mine.row, n - 1);
  byId("measure-panels").replaceChildren(
    factList(texts.map(([name, text]) => [name, [text]])),
    make("div", { class: "figures wide" }, measuredAgainstLength(found), measuredMap(found)));
  showMeasuredRow();
}

function measuredAgainstLength({ lengths, curve, plain, law, name }) {
  const most = Math.max(...curve, ...plain, 0.1) * 1.05;
  const x = { extent: [lengths[0], lengths[lengths.length - 1]], log: true, label: "length", ticks: lengths, text: String };
  const label = `Entropy of ${name} against length, as it is and under ${law}`;
  const { element, across, up } = axes(plotWidth(), HIGH, x, { extent: [0, most], label: "entropy (nats)" }, label);
  const lines = [{ values: plain, look: "curve own", name: "as it is" }, { values: curve, look: "curve head c0", name: law === "1" ? "as it is" : `scale ${law}` }];
  for (const { values, look } of lines) element.append(line(values.map((value, l) => [across(lengths[l]), up(value)]), { class: look }));
  curve.forEach((value, l) => element.append(draw("circle", { class: "point c0", cx: across(lengths[l]), cy: up(value), r: 4 })));
  return figure(element, "entropy against length, measured here", "measured-length", lineKeys(law === "1" ? lines.slice(1) : lines));
}

/** The weights as a picture: rows are queries, columns keys; neighbours share a field where they are many. */
function measuredMap({ map, fields, n, name }) {
  const size = Math.min(plotWidth(), HIGH);
  const canvas = make("canvas", { width: fields, height: fields, role: "img", class: "weights", style: `width: ${size}px; height: ${size}px`,
    "aria-label": `Weights of ${name}: queries from top to bottom, keys from left to right, the largest of a field brightest` });
  const most = map.reduce((largest, each) => Math.max(largest, each), 0) || 1;
  const picture = new ImageData(fields, fields);
  const colours = Array.from({ length: 256 }, (_, k) => mix(COLOURS.numbers, k / 255).match(/\d+/g).map(Number));
  map.forEach((weight, k) => {
    picture.data.set([...colours[Math.round(255 * Math.sqrt(weight / most))], 255], 4 * k);
  });
  canvas.getContext("2d").putImageData(picture, 0, 0);
  const each = fields < n ? `, ${few(n / fields, 2)} keys a field` : "";
  return make("figure", {}, canvas, make("figcaption", {}, `weights: queries down, keys across${each}; the colour is the root of the weight`));
}

async function showMeasuredRow() {
  const { n, name } = mine.shown;
  byId("measure-row").value = mine.row;
  const found = await ask("row", { row: mine.row });
  const text = !mine.file && SHARED.text && SHARED.text.tokens;
  const called = (key) => (text && key < text.length ? quoted(SHARED.text, key) : String(key));
  const items = found.keys.map((key, k) => make("li", {},
    make("span", { class: "weight", style: `width: ${6 * found.weights[k]}rem`, "aria-hidden": "true" }),
    ` ${show("max", found.weights[k])} on key ${called(key)}`));
  byId("measure-keys").replaceChildren(
    make("p", {}, make("strong", {}, `Row ${called(mine.row)} `), `of ${name}, ${n} keys: ${few(found.entropy, 3)} nats`),
    make("ol", {}, ...items));
}

async function openFile(file) {
  try {
    if (file.size >= MOST_BYTES) refuse("it has 2 GiB or more, which a page cannot measure");
    const { n, head_dim, queries, keys } = await readHeads(await file.arrayBuffer());
    mine.file = {
      name: file.name,
      at: (i) => ({ n, head_dim, query: queries[i], key: keys[i], is_causal: byId("measure-causal").checked, window: null }),
    };
    byId("measure-head").replaceChildren(...queries.map((_, i) => make("option", { value: i }, String(i))));
    chooseSource(n);
  } catch (error) {
    byId("measure-status").textContent = asSentence(`${file.name}: ${error.message}`);
  }
}

/** After the file, or the page's own heads, have been chosen: at their length, as they are. */
function chooseSource(n) {
  byId("measure-own").hidden = !mine.file;
  byId("measure-length").value = n;
  byId("measure-law").value = "1";
  byId("measure-times").value = 0;
  measure();
}

function startMeasure() {
  if (typeof WebAssembly !== "object") {
    byId("measure").hidden = true;
    return;
  }
  const longest = () => ((SHARED.kept || [])[state.head] || { n: SHARED.lengths[SHARED.lengths.length - 1] }).n;
  byId("measure-length").value = longest();
  startWorker().then((names) => byId("measure-laws").append(...names.map((value) => make("option", { value }))));
  let waiting;
  const soon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(measure, 150);
  };
  for (const name of ["length", "law", "head", "causal"]) byId(`measure-${name}`).addEventListener("change", soon);
  byId("measure-go").addEventListener("click", measure);
  byId("measure-stop").addEventListener("click", stopWorker);
  byId("measure-times").addEventListener("input", () => {
    byId("measure-law").value = String(Number((2 ** Number(byId("measure-times").value)).toPrecision(4)));
    soon();
  });
  byId("measure-row").addEventListener("change", () => {
    const row = Math.round(Number(byId("measure-row").value)) || 0;
    mine.row = Math.min(Math.max(row, 0), Number(byId("measure-row").max));
    if (mine.shown) showMeasuredRow();
  });
  byId("measure-file").addEventListener("change", (event) => event.target.files.length && openFile(event.target.files[0]));
  byId("measure-back").addEventListener("click", () => {
    mine.file = null;
    byId("measure-file").value = "";
    chooseSource(longest());
  });
  const section = byId("measure");
  section.addEventListener("dragover", (event) => event.preventDefault());
  section.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) openFile(event.dataTransfer.files[0]);
  });
  // The open head follows the map, once something was measured.
  let open = state.head;
  listeners.push(() => {
    if (open !== state.head && mine.shown && !mine.file) soon();
    open = state.head;
  });
}
