// The map of heads: a grid of fields that the mouse and the arrow keys open.

const GROUP_OF = new Map(HEADS.map(({ layer, group }) => [layer, GROUPS.indexOf(group)]));
const LAYERS = [...GROUP_OF.keys()].sort((a, b) => GROUP_OF.get(a) - GROUP_OF.get(b) || a - b);
const MODULE_OF = new Map(HEADS.map(({ layer, module }) => [layer, module]));
const layerName = (layer) => (GROUPS.length > 1 ? `${layer}: ${MODULE_OF.get(layer)}` : String(layer));
const COLUMNS = [...new Set(SHARED.heads)].sort((a, b) => a - b);
const HEAD_AT = new Map(HEADS.map(({ index, layer, head }) => [`${layer} ${head}`, index]));

/** How the fields of a map get their numbers: those of a report, or the difference of both. */
const MAPS = REPORTS.map((report, k) => ({
  name: NAMES[k],
  value: (i) => QUANTITIES[state.colour].value(report, i),
  colour: (value) => colourOf(state.colour, value),
}));
if (several)
  MAPS.push({
    name: `${NAMES[1]} less ${NAMES[0]}`,
    look: "cell less", // an equal number is nearly as light as the page
    value: (i) => difference(i),
    colour: (value) => (Number.isFinite(value) ? mix(COLOURS.differences, 0.5 + value / (2 * mostDifference())) : null),
  });

function difference(i) {
  const [a, b] = REPORTS.map((report) => QUANTITIES[state.colour].value(report, i));
  return b - a;
}
function mostDifference() {
  const sizes = HEADS.map(({ index }) => Math.abs(difference(index))).filter(Number.isFinite);
  return Math.max(ends(sizes)[1], QUANTITIES[state.colour].least);
}

function buildMap(map) {
  const side = Math.round(Math.min(Math.max((plotWidth() - 40) / COLUMNS.length, 16), 40));
  const [left, top] = [34, 20];
  const band = GROUPS.length > 1 ? 20 : 0; // above the layers of each group, for its name
  const longest = band && Math.max(...GROUPS.map((group) => 7 * group.length));
  const width = left + Math.max(side * COLUMNS.length, longest) + 6;
  const height = top + side * LAYERS.length + band * GROUPS.length + 6;
  const element = draw("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, role: "grid",
    "aria-label": `Map of heads${map.name && ": " + map.name}`,
  });
  const every = (names) => Math.max(1, Math.ceil(names.length / 12));
  const labels = draw("g", { "aria-hidden": "true" });
  COLUMNS.forEach((head, k) => {
    const x = left + side * (k + 0.5);
    if (k % every(COLUMNS) === 0) labels.append(draw("text", { x, y: top - 6, "text-anchor": "middle" }, String(head)));
  });
  map.cells = [];
  const rows = LAYERS.map((layer, r) => {
    const group = GROUP_OF.get(layer);
    const y = top + side * r + band * (group + 1);
    if (band && (r === 0 || GROUP_OF.get(LAYERS[r - 1]) !== group))
      labels.append(draw("text", { x: left, y: y - 5, class: "group" }, GROUPS[group]));
    if (r % every(LAYERS) === 0)
      labels.append(draw("text", { x: left - 6, y: y + side / 2 + 4, "text-anchor": "end" }, String(layer)));
    const row = draw("g", { role: "row" });
    COLUMNS.forEach((head, k) => {
      const index = HEAD_AT.get(`${layer} ${head}`);
      if (index === undefined) return;
      const cell = draw("rect", {
        class: map.look || "cell", role: "gridcell", x: left + side * k, y, width: side, height: side, tabindex: -1,
        onclick: () => openHead(index, false),
        onkeydown: (event) => onKey(event, map, r, k),
        onfocus: () => {
          hint(map, index);
          ring(map.focusRing, cell.matches(":focus-visible") ? cell : null);
        },
        onblur: () => ring(map.focusRing, null),
        onmouseenter: () => hint(map, index),
      });
      map.cells[index] = cell;
      row.append(cell);
    });
    return row;
  });
  // Drawn last, so that no field covers them: what is open, and where the keyboard is.
  // The open field's frame has a lighter one around it, to be seen on every colour.
  const frame = (name, attributes = {}) =>
    draw("rect", { class: name, "aria-hidden": "true", width: side, height: side, ...attributes });
  map.openRings = [frame("ring halo"), frame("ring")];
  map.focusRing = frame("ring focus", { display: "none" });
  element.append(labels, ...rows, ...map.openRings, map.focusRing);
  return element;
}

/** Put a frame around a field, or take it away. */
function ring(frame, cell) {
  frame.setAttribute("display", cell ? "inline" : "none");
  if (cell) for (const name of ["x", "y"]) frame.setAttribute(name, cell.getAttribute(name));
}

const STEPS = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };

/** Arrow keys go to the next head that is there, Home and End to the ends of the layer, Enter opens. */
function onKey(event, map, row, column) {
  const at = (r, c) => HEAD_AT.get(`${LAYERS[r]} ${COLUMNS[c]}`);
  let found;
  if (event.key === "Enter" || event.key === " ") {
    openHead(at(row, column), true);
  } else if (STEPS[event.key]) {
    const [down, right] = STEPS[event.key];
    let [r, c] = [row + down, column + right];
    while (r in LAYERS && c in COLUMNS && at(r, c) === undefined) [r, c] = [r + down, c + right];
    found = at(r, c);
  } else if (event.key === "Home" || event.key === "End") {
    const there = COLUMNS.map((_, c) => at(row, c)).filter((index) => index !== undefined);
    found = event.key === "Home" ? there[0] : there[there.length - 1];
  } else return;
  event.preventDefault();
  if (found !== undefined) focusCell(map, found);
}

function focusCell(map, index) {
  map.current = index;
  map.cells.forEach((cell, i) => cell.setAttribute("tabindex", i === index ? 0 : -1));
  map.cells[index].focus();
}

function say(map, index) {
  const value = map.value(index);
  return `${headName(index)}: ${show(state.colour, value)} ${QUANTITIES[state.colour].label}`;
}
function hint(map, index) {
  document.getElementById("hint").textContent = say(map, index) + (map.name && ` (${map.name})`);
}

function openHead(index, move) {
  choose({ head: index });
  if (move) document.getElementById("head-title").focus();
  else document.getElementById("hint").textContent = `${headName(index)} is open below.`;
}

function updateMap(map, there) {
  HEADS.forEach(({ index }) => {
    const cell = map.cells[index];
    const colour = map.colour(map.value(index));
    cell.setAttribute("fill", colour || "none");
    cell.classList.toggle("known", Boolean(colour));
    cell.classList.toggle("out", !there.has(index));
    cell.setAttribute("aria-selected", index === state.head);
    cell.setAttribute("aria-label", say(map, index));
    cell.setAttribute("tabindex", index === (map.current ?? state.head) ? 0 : -1);
  });
  for (const frame of map.openRings) ring(frame, map.cells[state.head]);
}

function startMaps() {
  const folder = document.getElementById("maps");
  for (const map of MAPS) folder.append(figure(buildMap(map), map.name || "layers down, heads across", "heads-map"));
  listeners.push(() => {
    const there = new Set(passing());
    for (const map of MAPS) updateMap(map, there);
    const { label, log, share } = QUANTITIES[state.colour];
    const text = share ? percentText : tickText;
    const legends = [legend(COLOURS.numbers, scale(extentOf(state.colour), [0, 1], log), label, text)];
    if (several) {
      const most = mostDifference();
      legends.push(legend(COLOURS.differences, scale([-most, most], [0, 1]), `${label}: ${MAPS[2].name}`, text));
    }
    document.getElementById("legend").replaceChildren(...legends);
  });
}
