// The scatter plot: a dot for each head that passes the filter.

/** Heads of a scatter plot from which its dots are smaller. */
const CROWD = 1000;

function padded(quantity, values) {
  const { log, least } = QUANTITIES[quantity];
  const known = values.filter(Number.isFinite);
  if (!known.length) return log ? [1, 10] : [0, 1];
  const [low, high] = ends(known);
  if (log) return [low / 1.15, high * 1.15];
  const room = Math.max((high - low) * 0.05, least - (high - low) / 2); // equal numbers look equal
  return [low - room, high + room];
}

function scatter(report, name) {
  const there = passing();
  const [qx, qy] = [QUANTITIES[state.x], QUANTITIES[state.y]];
  const all = (quantity) => REPORTS.flatMap((each) => there.map((i) => quantity.value(each, i)));
  const axis = (id, quantity) => ({
    extent: padded(id, all(quantity)),
    log: quantity.log,
    label: quantity.label,
    text: quantity.share ? percentText : tickText,
  });
  const label = `Scatter plot of ${there.length} heads, ${qx.label} across, ${qy.label} up. The table has its numbers.`;
  const { element, across, up } = axes(plotWidth(), 340, axis(state.x, qx), axis(state.y, qy), label);
  const radius = there.length > CROWD ? 3 : 5;
  for (const i of there) {
    const [x, y] = [qx.value(report, i), qy.value(report, i)];
    if (!Number.isFinite(x) || !Number.isFinite(y)) continue;
    const dot = draw("circle", {
      class: i === state.head ? "dot open" : "dot", cx: across(x).toFixed(2), cy: up(y).toFixed(2),
      r: i === state.head ? 7 : radius, fill: colourOf(state.colour, QUANTITIES[state.colour].value(report, i)) || "none",
      onclick: () => openHead(i, false),
    });
    dot.append(draw("title", {}, `${headName(i)}: ${show(state.x, x)} ${qx.label}, ${show(state.y, y)} ${qy.label}`));
    element.append(dot);
  }
  return figure(element, `${name}${name && ": "}at ${lengthName()}${atMultiple()}`, "heads-scatter");
}

function startScatter() {
  listeners.push(() => {
    const plots = REPORTS.map((report, k) => scatter(report, NAMES[k]));
    document.getElementById("scatters").replaceChildren(...plots);
  });
}
