// Measure again: the open head at any scale, law and length, by the core itself.

const MAP_SIZE = 256; // rows and columns of the map of weights at most
/** What was found last, the row whose keys are listed, and how often it was asked. */
const mine = { shown: null, row: null, asked: 0 };

/** What stands in the form, as the worker takes it; an Error says what is wrong with it. */
function wanted() {
  const refuse = (text) => { throw new Error(text); };
  const head = SHARED.kept[state.head];
  if (!head) refuse("the page does not carry this head: it has a mask or a soft-cap, or does not attend to its own rows");
  const n = Number(byId("measure-length").value);
  if (!Number.isInteger(n) || n < 2 || n > head.n) refuse(`the length must be an integer from 2 to ${head.n}, got ${byId("measure-length").value || "nothing"}`);
  const law = byId("measure-law").value.trim();
  if (!law) refuse("the scale must be a number or a law, such as 1.5 or log_n");
  return { head, n, law };
}

async function measure() {
  const status = byId("measure-status");
  const asked = ++mine.asked; // a newer question takes the place of this one
  try {
    const question = wanted();
    showProgress(0);
    const found = await ask("measure", { ...question, map: MAP_SIZE }, (share) => asked === mine.asked && showProgress(share));
    if (asked !== mine.asked || LEFT.aborted) return;
    status.textContent = "";
    showMeasured({ ...found, ...question, name: headName(state.head) });
  } catch (error) {
    if (asked !== mine.asked || LEFT.aborted) return;
    status.textContent = asSentence(error.message);
    for (const id of ["measure-panels", "measure-keys"]) byId(id).replaceChildren();
    byId("measure-rows").hidden = true;
  }
  showProgress(null);
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
  const found = await ask("row", { row: mine.row }).catch(() => null); // stopped
  if (!found || LEFT.aborted) return;
  const text = SHARED.text && SHARED.text.tokens;
  const called = (key) => (text && key < text.length ? quoted(SHARED.text, key) : String(key));
  const items = found.keys.map((key, k) => make("li", {},
    make("span", { class: "weight", style: `width: ${6 * found.weights[k]}rem`, "aria-hidden": "true" }),
    ` ${show("max", found.weights[k])} on key ${called(key)}`));
  byId("measure-keys").replaceChildren(
    make("p", {}, make("strong", {}, `Row ${called(mine.row)} `), `of ${name}, ${n} keys: ${few(found.entropy, 3)} nats`),
    make("ol", {}, ...items));
}

function startMeasure() {
  const longest = () => SHARED.kept[state.head]?.n ?? SHARED.lengths.at(-1);
  byId("measure-length").value = longest();
  ask("laws").then((names) => byId("measure-laws").append(...names.map((value) => make("option", { value })))).catch(() => {});
  let waiting;
  const soon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(measure, 150);
  };
  for (const name of ["length", "law"]) byId(`measure-${name}`).addEventListener("change", soon);
  byId("measure-go").addEventListener("click", measure);
  byId("measure-stop").addEventListener("click", stopWorker);
  byId("measure-row").addEventListener("change", () => {
    const row = Math.round(Number(byId("measure-row").value)) || 0;
    mine.row = Math.min(Math.max(row, 0), Number(byId("measure-row").max));
    if (mine.shown) showMeasuredRow();
  });
  // The head, the length and the scale follow those of the page; what was measured is then measured again.
  const chosenNow = () => ({ head: state.head, length: state.length, multiple: state.multiple });
  let before = chosenNow();
  listeners.push(() => {
    const now = chosenNow();
    if (now.length !== before.length) byId("measure-length").value = SHARED.lengths[now.length];
    if (now.multiple !== before.multiple) byId("measure-law").value = String(SHARED.multiples[now.multiple]);
    if (mine.shown && Object.keys(now).some((each) => now[each] !== before[each])) soon();
    before = now;
  });
}
