// The text: each token in the colour of the entropy of its row, and what that row attends to.

const bytes = (text) => Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
const TOP = 5; // keys that are kept of each row

/** The rows of a head along the text, read once; null where the head reads something else. */
const READ = new Map();
function rowsOf(report, i) {
  const { text } = report;
  if (!text || !text.entropy[i]) return null;
  const name = `${REPORTS.indexOf(report)} ${i}`;
  if (!READ.has(name)) {
    const index = bytes(text.top_keys[i]).buffer;
    READ.set(name, {
      entropy: bytes(text.entropy[i]),
      keys: text.index_bytes === 2 ? new Uint16Array(index) : new Uint32Array(index),
      weights: bytes(text.top_weights[i]),
      spans: bytes(text.span_weights[i]),
    });
  }
  return READ.get(name);
}
const percent = (byte) => `${few((100 * byte) / 255, byte < 26 ? 1 : 2)} %`;

/** A token as it is shown: what is only space gets a sign. */
const visible = (token) => (token.trim() ? token : token.replaceAll(" ", "\u2423").replaceAll("\n", "\u21b5").replaceAll("\t", "\u21e5") || "\u2205");
const quoted = (text, key) => (key < text.tokens.length ? `${key} \u201c${visible(text.tokens[key])}\u201d` : `${key}, which is not shown`);

/** Black or white, whichever is read better on a colour; the worst of all colours has a contrast of 4.5. */
function inkOn(colour) {
  const [r, g, b] = colour.match(/\d+/g).map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

/** The text of one report, with the row that is chosen. */
function textPanel(report, k) {
  const { text } = report;
  const panel = { report, current: 0, tokens: [] };
  const spanOf = (t) => text.spans.findIndex(({ start, stop }) => start <= t && t < stop);
  panel.tokens = text.tokens.map((token, t) =>
    make("span", { role: "option", class: spanOf(t) < 0 ? "token" : `token s${spanOf(t) % 4}`, tabindex: t ? -1 : 0, "aria-selected": t === 0, "data-row": t }, visible(token)));
  const rowAt = (event) => event.target.closest("[data-row]");
  panel.box = make("div", {
    class: "tokens", role: "listbox", "aria-label": `Tokens in the colours of their rows${several ? `: ${NAMES[k]}` : ""}`,
    onfocusin: (event) => rowAt(event) && showRow(panel, Number(rowAt(event).dataset.row), true),
    onmouseover: (event) => rowAt(event) && showRow(panel, Number(rowAt(event).dataset.row), false),
    onmouseleave: () => showRow(panel, panel.current, false),
    onclick: (event) => rowAt(event) && rowAt(event).focus(),
    onkeydown: (event) => textKey(event, panel),
  }, ...panel.tokens);
  panel.row = make("div", { class: "row-keys", "aria-live": "polite" });
  panel.element = make("div", {}, several ? make("h3", {}, NAMES[k]) : null, panel.box, panel.row);
  return panel;
}

const LEAPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 20, PageUp: -20, End: Infinity, Home: -Infinity };
function textKey(event, panel) {
  const leap = LEAPS[event.key];
  if (leap === undefined) return;
  event.preventDefault();
  panel.tokens[Math.min(Math.max(panel.current + leap, 0), panel.tokens.length - 1)].focus();
}

/** What a row attends to, and these keys marked in the text; `keep`: it is the row that the keyboard is at. */
function showRow(panel, t, keep) {
  const { text } = panel.report;
  const rows = rowsOf(panel.report, state.head);
  if (keep) {
    for (const [each, on] of [[panel.current, false], [t, true]]) {
      panel.tokens[each].setAttribute("tabindex", on ? 0 : -1);
      panel.tokens[each].setAttribute("aria-selected", on);
    }
    panel.current = t;
  }
  for (const each of panel.box.querySelectorAll(".key, .open")) each.classList.remove("key", "open");
  if (!rows) return;
  panel.tokens[t].classList.add("open");
  const nats = (rows.entropy[t] / 255) * Math.log(text.n_keys);
  const found = [];
  for (let j = t * TOP; j < (t + 1) * TOP; j++) if (rows.weights[j]) found.push([rows.keys[j], rows.weights[j]]);
  for (const [key] of found) if (key < panel.tokens.length) panel.tokens[key].classList.add("key");
  const bar = (byte, look) => make("span", { class: look, style: `width: ${(6 * byte) / 255}rem`, "aria-hidden": "true" });
  const item = (byte, what, look = "weight") => make("li", {}, bar(byte, look), ` ${percent(byte)} on ${what}`);
  const keys = make("ol", {}, ...found.map(([key, byte]) => item(byte, `key ${quoted(text, key)}`)));
  const rest = 255 - found.reduce((sum, [, byte]) => sum + byte, 0);
  const unsaid = rest > found.length / 2; // more than rounding leaves
  const others = make("p", { class: "rest" }, bar(rest, "weight"), ` ${percent(rest)} on the rest`);
  const spans = text.spans.map(({ name, start, stop }, s) =>
    item(rows.spans[t * text.spans.length + s], `${name}, tokens ${start} to ${stop - 1}`, `weight s${s % 4}`));
  panel.row.replaceChildren(
    make("p", {}, make("strong", {}, `Row ${quoted(text, t)}: `), `${few(nats, 2)} nats, ${few(Math.exp(nats), 2)} effective keys`),
    found.length ? make("div", {}, keys, unsaid ? others : "") : make("p", {}, "No key has as much as 0.2 % of the weight."),
    spans.length ? make("ul", { "aria-label": "Spans of the text" }, ...spans) : "");
}

function paint(panel) {
  const rows = rowsOf(panel.report, state.head);
  panel.tokens.forEach((token, t) => {
    const colour = rows && mix(COLOURS.numbers, rows.entropy[t] / 255);
    token.style.background = colour || "none";
    token.style.color = colour ? inkOn(colour) : "inherit";
  });
  panel.row.replaceChildren(...(rows ? [] : [make("p", {}, "This head attends to something else than the text.")]));
  showRow(panel, panel.current, false);
}

function startText() {
  const panels = REPORTS.flatMap((report, k) => (report.text ? [textPanel(report, k)] : []));
  if (!panels.length) return;
  byId("text").hidden = false;
  byId("text-panels").append(...panels.map(({ element }) => element));
  const most = Math.max(...panels.map(({ report }) => report.text.n_keys));
  listeners.push(() => {
    const { n_keys, tokens } = panels[0].report.text;
    const part = tokens.length < n_keys ? `the first ${tokens.length} of ` : "";
    byId("text-note").textContent =
      `Rows of ${headName(state.head)}, ${part}${n_keys} tokens${asMeasured()}. The strongest keys of a row stand below the text, and are ` +
      "framed in it: point at a token, or go there with the arrow keys.";
    for (const panel of panels) paint(panel);
    byId("text-legend").replaceChildren(
      legend(COLOURS.numbers, scale([1, Math.max(most, 2)], [0, 1], true), "effective keys of a row", tickText));
  });
}
