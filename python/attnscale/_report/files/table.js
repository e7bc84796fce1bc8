// The table of heads: the numbers of the figures in words, sorted and filtered; what the filter shows is saved.

/** The columns of the table: a value to sort by, and its text, of a report's head. */
const COLUMNS_SHOWN = [
  ...Object.entries(QUANTITIES).map(([id, { label, short, value }]) => ({
    id, label, short, value, text: (report, i) => show(id, value(report, i)),
  })),
  { id: "law", label: "best law, at \u00d7 1", short: "law, \u00d7 1", value: bestLaw, text: bestLaw, word: true },
];
function bestLaw(report, i) {
  return report.best[i] < 0 || nearlyEqual(report, i) ? "" : report.laws[report.best[i]].name;
}

/** What a head is sorted by: the number of one report, or the difference of both. */
function sortValue(column, i) {
  if (column.word || state.of < 2) return column.value(REPORTS[column.word ? 0 : state.of], i);
  return column.value(REPORTS[1], i) - column.value(REPORTS[0], i);
}

function sorted(heads) {
  const column = COLUMNS_SHOWN.find((each) => each.id === state.sort);
  if (!column) return heads;
  const sign = state.down ? -1 : 1;
  const known = (value) => typeof value === "string" || Number.isFinite(value);
  return [...heads].sort((a, b) => {
    const [x, y] = [sortValue(column, a), sortValue(column, b)];
    if (known(x) !== known(y)) return known(x) ? -1 : 1;
    return x < y ? -sign : x > y ? sign : a - b;
  });
}

/** A name that is shorter in a narrow window. */
const named = (label, short) => [make("span", { class: "long" }, label), make("span", { class: "short" }, short)];

function headerCell(column) {
  const on = state.sort === column.id;
  const flip = () => {
    choose({ sort: column.id, down: on ? !state.down : !column.word });
    document.querySelector(`[data-sort="${column.id}"]`).focus();
  };
  const arrow = on ? (state.down ? "\u2193" : "\u2191") : "\u2195";
  const mark = make("span", { class: on ? "arrow on" : "arrow", "aria-hidden": "true" }, arrow);
  return make("th", { scope: "col", "aria-sort": on ? (state.down ? "descending" : "ascending") : null, class: column.word ? "word" : null },
    make("button", { type: "button", "data-sort": column.id, title: `Sort by ${column.label}`, onclick: flip },
      ...named(column.label, column.short), mark));
}

/** Heads of a table that is drawn at once; a reader may ask for the others. */
const FIRST = 200;
let whole = false;

/** A head in as many rows as there are reports. */
function headRows(i) {
  const open = make("button", { type: "button", onclick: () => openHead(i, true) },
    ...named(headName(i), `L${HEADS[i].layer} H${HEADS[i].head}`));
  return REPORTS.map((report, k) =>
    make("tr", { class: i === state.head ? "open" : null },
      k === 0 ? make("th", { scope: "row", rowspan: REPORTS.length }, open) : null,
      several ? make("td", { class: "word" }, NAMES[k]) : null,
      ...COLUMNS_SHOWN.map((column) => make("td", { class: column.word ? "word" : null }, column.text(report, i)))));
}

function drawTable() {
  const passed = sorted(passing());
  const heads = whole ? passed : passed.slice(0, FIRST);
  const names = [make("th", { scope: "col" }, "head"), several ? make("th", { scope: "col", class: "word" }, "report") : null];
  const head = make("tr", {}, ...names, ...COLUMNS_SHOWN.map(headerCell));
  const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...heads.flatMap(headRows)));
  const scroll = document.getElementById("table-scroll");
  const { scrollLeft, scrollTop } = scroll;
  scroll.replaceChildren(table);
  Object.assign(scroll, { scrollLeft, scrollTop });
  document.getElementById("sort-of").value = state.of;
  const first = heads.length < passed.length ? `, the first ${heads.length} of them below` : "";
  document.getElementById("table-note").textContent =
    `${passed.length} of ${HEADS.length} heads at ${lengthName()}${atMultiple()}${first}.`;
  document.getElementById("table-all").hidden = !first;
}

/** The heads that the table shows, with full numbers; two reports have columns of their own. */
function csv() {
  const quote = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const cell = (value) => (typeof value === "string" ? quote(value) : Number.isFinite(value) ? String(value) : "");
  const shown = REPORTS.flatMap((report, k) => COLUMNS_SHOWN.map((column) => ({
    label: column.label.replace("\u00d7", "x") + (several ? ` (${NAMES[k]})` : ""),
    value: (i) => column.value(report, i),
  })));
  const module = HEADS.some((each) => each.module) ? ["module"] : [];
  const header = [...module, "layer", "head", "length", "multiple", ...shown.map((column) => quote(column.label))];
  const [length, multiple] = [SHARED.lengths[state.length], SHARED.multiples[state.multiple]];
  const rows = sorted(passing()).map((i) =>
    [...module.map(() => quote(HEADS[i].module)), HEADS[i].layer, HEADS[i].head, length, multiple, ...shown.map((column) => cell(column.value(i)))]);
  return [header, ...rows].map((row) => row.join(",")).join("\n") + "\n";
}

function startTable() {
  const options = (names) => names.map(([value, text]) => make("option", { value }, text));
  const layer = document.getElementById("filter-layer");
  layer.append(...options([["", "all"], ...LAYERS.map((each) => [each, layerName(each)])]));
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
  const of = document.getElementById("sort-of");
  of.append(...options(several ? [...NAMES.map((name, k) => [k, name]), [2, `${NAMES[1]} less ${NAMES[0]}`]] : [[0, "this"]]));
  of.addEventListener("change", () => choose({ of: Number(of.value) }));
  document.getElementById("sort-control").hidden = !several;
  document.getElementById("table-all").addEventListener("click", () => {
    whole = true;
    drawTable();
    document.getElementById("table-scroll").focus();
  });
  document.getElementById("export-csv").addEventListener("click", () => saveFile("heads.csv", csv(), "text/csv"));
  listeners.push(drawTable);
}
