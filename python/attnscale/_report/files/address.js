// What is chosen, in the part of the address behind "#": a link opens the page as it was left.

const inWords = (names, name) => (names.includes(name) ? name : undefined);
const placed = (list, text) => {
  const found = list.findIndex((each) => String(each) === text);
  return found < 0 ? undefined : found;
};
const SORTS = [...Object.keys(QUANTITIES), "law"];
/** Of each choice: its name in the address, how it is written, and how it is read; undefined is no such choice. */
const CHOICES = {
  length: ["length", (l) => SHARED.lengths[l], (text) => placed(SHARED.lengths, text)],
  multiple: ["scale", (m) => SHARED.multiples[m], (text) => placed(SHARED.multiples, text)],
  head: ["head", (i) => `${HEADS[i].layer}.${HEADS[i].head}`,
    (text) => placed(HEADS.map(({ layer, head }) => `${layer}.${head}`), text)],
  colour: ["colour", String, (text) => inWords(Object.keys(QUANTITIES), text)],
  x: ["across", String, (text) => inWords(Object.keys(QUANTITIES), text)],
  y: ["up", String, (text) => inWords(Object.keys(QUANTITIES), text)],
  sort: ["sort", String, (text) => inWords(SORTS, text)],
  down: ["down", String, (text) => ({ true: true, false: false })[text]],
  of: ["of", String, (text) => placed(several ? [0, 1, 2] : [0], text)],
  random: ["random", String, (text) => ({ true: true, false: false })[text]],
};

let untouched; // the choices that the page begins with, which the address leaves out
let waiting;

function writeAddress() {
  const parts = Object.entries(CHOICES)
    .filter(([each]) => state[each] !== untouched[each])
    .map(([each, [name, write]]) => `${name}=${write(state[each])}`);
  const address = parts.length || location.hash ? `#${parts.join("&")}` : "";
  if (address !== location.hash) history.replaceState(null, "", address);
}

/** Take over what the address says; what it does not name is as the page begins. */
function readAddress() {
  const said = new URLSearchParams(location.hash.slice(1));
  const found = {};
  for (const [each, [name, , read]] of Object.entries(CHOICES))
    if (said.has(name)) found[each] = read(said.get(name));
  const known = Object.entries(found).filter(([, value]) => value !== undefined);
  if (known.length) choose({ ...untouched, ...Object.fromEntries(known) });
}

function startAddress() {
  if (DATA.own) return; // the address is of the page's own heads, and waits for them
  untouched = Object.fromEntries(Object.keys(CHOICES).map((each) => [each, state[each]]));
  readAddress();
  if (location.protocol === "about:") return; // in the frame of a notebook, which has no address
  window.addEventListener("hashchange", readAddress, { signal: LEFT });
  // Browsers refuse many changes of the address in a short time, as a slider makes them.
  listeners.push(() => {
    clearTimeout(waiting);
    waiting = setTimeout(() => LEFT.aborted || writeAddress(), 200);
  });
}
