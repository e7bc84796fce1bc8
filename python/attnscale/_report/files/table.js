// The table of heads: the numbers of the figures in words, sorted and filtered; what the filter shows is saved.

const COLUMN_NAMES = ["keys", "entropy", "growth", "first", "max", "received", "random", "beta", "misses"];

/** The columns of the table: a value to sort by, and its text, for each report. */
function columns() {
  return REPORTS.flatMap((report, k) => {
    const of = several ? ` (${NAMES[k]})` : "";
    const numbers = COLUMN_NAMES.map((id) => ({
      id: `${id} ${k}`,
      label: QUANTITIES[id].label + of,
      value: (i) => QUANTITIES[id].value(report, i),
      text: (i) => show(id, QUANTITIES[id].value(report, i)),
    }));
    const law = (i) => (report.best[i] < 0 ? "" : report.laws[report.best[i]].name);
    return [...numbers, { id: `law ${k}`, label: "best law" + of, value: law, text: law, word: true }];
  });
}

function sorted(shown, heads) {
  const column = shown.find((each) => each.id === state.sort);
  if (!column) return heads;
  const sign = state.down ? -1 : 1;
  const known = (value) => typeof value === "string" || Number.isFinite(value);
  return [...heads].sort((a, b) => {
    const [x, y] = [column.value(a), column.value(b)];
    if (known(x) !== known(y)) return known(x) ? -1 : 1;
    return x < y ? -sign : x > y ? sign : a - b;
  });
}

function headerCell(column) {
  const on = state.sort === column.id;
  const flip = () => {
    choose({ sort: column.id, down: on ? !state.down : !column.word });
    document.querySelector(`[data-sort="${column.id}"]`).focus();
  };
  const arrow = on ? (state.down ? " \u2193" : " \u2191") : "";
  return make("th", { scope: "col", "aria-sort": on ? (state.down ? "descending" : "ascending") : null, class: column.word ? "word" : null },
    make("button", { type: "button", "data-sort": column.id, onclick: flip }, column.label + arrow));
}

function drawTable() {
  const shown = columns();
  const heads = sorted(shown, passing());
  const rows = heads.map((i) =>
    make("tr", { class: i === state.head ? "open" : null },
      make("th", { scope: "row" }, make("button", { type: "button", onclick: () => openHead(i, true) }, headName(i))),
      ...shown.map((column) => make("td", { class: column.word ? "word" : null }, column.text(i)))));
  const head = make("tr", {}, make("th", { scope: "col" }, "head"), ...shown.map(headerCell));
  const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
  const scroll = document.getElementById("table-scroll");
  const { scrollLeft, scrollTop } = scroll;
  scroll.replaceChildren(table);
  Object.assign(scroll, { scrollLeft, scrollTop });
  const at = state.multiple === 1 ? "" : `, at ${multipleName()} the scale`;
  document.getElementById("table-note").textContent = `${heads.length} of ${HEADS.length} heads at ${lengthName()}${at}.`;
}

/** The rows that the table shows, with full numbers. */
function csv() {
  const shown = columns();
  const quote = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const cell = (value) => (typeof value === "string" ? quote(value) : Number.isFinite(value) ? String(value) : "");
  const header = ["layer", "head", "length", "multiple", ...shown.map((column) => quote(column.label))];
  const rows = sorted(shown, passing()).map((i) =>
    [HEADS[i].layer, HEADS[i].head, SHARED.lengths[state.length], state.multiple, ...shown.map((column) => cell(column.value(i)))]);
  return [header, ...rows].map((row) => row.join(",")).join("\n") + "\n";
}

function startTable() {
  const options = (names) => names.map(([value, text]) => make("option", { value }, text));
  const layer = document.getElementById("filter-layer");
  layer.append(...options([["", "all"], ...LAYERS.map((each) => [each, String(each)])]));
  layer.addEventListener("change", () => choose({ layer: layer.value }));
  const where = document.getElementById("filter-quantity");
  const sign = document.getElementById("filter-sign");
  const value = document.getElementById("filter-value");
  const change = () => {
    const typed = value.value === "" ? null : Number(value.value);
    const share = QUANTITIES[where.value].share && typed !== null;
    choose({ where: where.value, sign: Number(sign.value), number: share ? typed / 100 : typed });
  };
  where.append(...options(Object.entries(QUANTITIES).map(([id, { label, share }]) => [id, label + (share ? " (%)" : "")])));
  for (const each of [where, sign]) each.addEventListener("change", change);
  value.addEventListener("input", change);
  document.getElementById("export-csv").addEventListener("click", () => saveFile("heads.csv", csv(), "text/csv"));
  listeners.push(drawTable);
}
