// Elements, scales, axes and colours.

/** An element of HTML; text is text, never markup. */
function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}
/** An element of SVG. */
function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((each) => each !== null));
  return element;
}

/** A function from numbers to pixels, with its ticks. */
function scale([low, high], [from, to], log = false) {
  const turn = log ? Math.log : (value) => value;
  const [a, b] = [turn(low), turn(high)];
  const place = (value) => from + ((turn(value) - a) / (b - a || 1)) * (to - from);
  place.ticks = log ? logTicks(low, high) : evenTicks(low, high);
  return place;
}
function evenTicks(low, high, wanted = 7) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((each) => each * power >= rough * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(k * step);
  return ticks;
}
function logTicks(low, high) {
  const wide = high / low > 2000;
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    for (const each of wide ? [1] : [1, 2, 5]) {
      const tick = each * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  return ticks.length > 1 ? ticks : evenTicks(low, high);
}
/** A number to some digits, without an exponent. */
function few(value, digits) {
  if (!Number.isFinite(value)) return "none";
  const size = value === 0 ? 0 : Math.floor(Math.log10(Math.abs(value)));
  const text = value.toFixed(Math.min(Math.max(digits - 1 - size, 0), 4));
  return text.replace("-", Number(text) ? "\u2212" : ""); // no -0.000
}

const tickText = (value, digits = 4) => String(Number(value.toPrecision(digits))).replace("-", "\u2212");
const percentText = (value, digits) => `${tickText(100 * value, digits)} %`;
/** The texts of ticks, with as many digits as tell all of them apart. */
function tickTexts(ticks, text = tickText) {
  let found = [];
  for (let digits = 4; digits <= 12; digits++) {
    found = ticks.map((tick) => text(tick, digits));
    if (new Set(found).size === found.length) break;
  }
  return found;
}
/** The heights nearest to these, from `low` to `high`, that are at least `gap` apart: labels do not touch. */
function apart(heights, gap, low, high) {
  const order = heights.map((_, i) => i).sort((a, b) => heights[a] - heights[b]);
  const found = [...heights];
  let edge = low - gap;
  for (const i of order) edge = found[i] = Math.max(found[i], edge + gap);
  edge = high + gap;
  for (const i of order.reverse()) edge = found[i] = Math.min(found[i], edge - gap);
  return found;
}

/**
 * Axes of a figure of `width` times `height`; returns the element and both scales.
 * An axis is {extent, label, log, ticks, text}.
 */
function axes(width, height, x, y, label) {
  const edge = { left: 52, right: 14, top: 10, bottom: 40 };
  const across = scale(x.extent, [edge.left, width - edge.right], x.log);
  const up = scale(y.extent, [height - edge.bottom, edge.top], y.log);
  const element = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  const [xTicks, yTicks] = [x.ticks || across.ticks, y.ticks || up.ticks];
  const [xTexts, yTexts] = [tickTexts(xTicks, x.text), tickTexts(yTicks, y.text)];
  xTicks.forEach((tick, k) => {
    const at = across(tick);
    element.append(
      draw("line", { class: "grid", x1: at, x2: at, y1: edge.top, y2: height - edge.bottom }),
      draw("text", { x: at, y: height - edge.bottom + 15, "text-anchor": "middle" }, xTexts[k]),
    );
  });
  yTicks.forEach((tick, k) => {
    const at = up(tick);
    element.append(
      draw("line", { class: "grid", x1: edge.left, x2: width - edge.right, y1: at, y2: at }),
      draw("text", { x: edge.left - 6, y: at + 4, "text-anchor": "end" }, yTexts[k]),
    );
  });
  const middle = (edge.top + height - edge.bottom) / 2;
  element.append(
    draw("text", { x: (edge.left + width - edge.right) / 2, y: height - 6, "text-anchor": "middle" }, x.label),
    draw("text", { transform: `translate(13 ${middle}) rotate(-90)`, "text-anchor": "middle" }, y.label),
  );
  return { element, across, up, edge };
}

/** A line through the points whose numbers are known. */
function line(points, attributes) {
  let pen = "M";
  let path = "";
  for (const [x, y] of points) {
    if (Number.isFinite(x) && Number.isFinite(y)) {
      path += `${pen}${x.toFixed(2)},${y.toFixed(2)}`;
      pen = "L";
    } else pen = "M";
  }
  return draw("path", { d: path, ...attributes });
}

/** What the lines of a figure are. */
function lineKeys(lines) {
  const swatch = (look) => draw("svg", { width: 28, height: 10, "aria-hidden": "true" }, draw("path", { d: "M0,5L28,5", class: look }));
  return make("ul", { class: "keys" }, ...[...lines].reverse().map(({ look, name }) => make("li", {}, swatch(look), name)));
}

/** A colour between the stops of a map, at a share from 0 to 1. */
function mix(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const i = Math.min(Math.floor(place), stops.length - 2);
  const parts = [1, 3, 5].map((k) => {
    const [a, b] = [stops[i], stops[i + 1]].map((stop) => parseInt(stop.slice(k, k + 2), 16));
    return Math.round(a + (b - a) * (place - i));
  });
  return `rgb(${parts.join(",")})`;
}
/** The colour of a number of a quantity; null where there is none. */
function colourOf(quantity, value) {
  if (!Number.isFinite(value)) return null;
  return mix(COLOURS.numbers, scale(extentOf(quantity), [0, 1], QUANTITIES[quantity].log)(value));
}

/** Whether figures stand below each other; report.css has the same width. */
const narrow = window.matchMedia("(max-width: 46rem)");
/** The width of a plot in pixels where two figures share the page. */
function plotWidth() {
  const room = document.querySelector("main").clientWidth;
  return Math.max(260, Math.floor(narrow.matches ? room : (room - 16) / 2) - 16);
}

/** A figure with a caption and a button that saves it; `below` stands between both. */
function figure(element, caption, file, below = null) {
  const save = make("button", { type: "button", onclick: () => saveSvg(element, file) }, "Save as SVG");
  save.setAttribute("aria-label", `Save as SVG: ${caption}`);
  return make("figure", {}, element, below, make("figcaption", {}, make("span", {}, caption), save));
}

/** The colours of a quantity, from the least to the largest, with its ticks. */
function legend(stops, place, label, text) {
  const [width, left, right] = [360, 18, 18];
  const element = draw("svg", { viewBox: `0 0 ${width} 50`, width, height: 50, role: "img", "aria-label": label });
  const steps = 60;
  for (let k = 0; k < steps; k++) {
    const x = left + ((width - left - right) * k) / steps;
    element.append(
      draw("rect", { x, y: 4, width: (width - left - right) / steps + 0.5, height: 12, fill: mix(stops, (k + 0.5) / steps) }),
    );
  }
  tickTexts(place.ticks, text).forEach((said, k) =>
    element.append(
      draw("text", { x: left + place(place.ticks[k]) * (width - left - right), y: 30, "text-anchor": "middle" }, said),
    ));
  element.append(draw("text", { x: width / 2, y: 45, "text-anchor": "middle" }, label));
  return element;
}
