// Files that the reader saves: a figure as SVG with its styles in it, the table as CSV.

function saveFile(name, content, type) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  const link = make("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size"];

/** A copy of a figure that looks the same without the page's style sheet. */
function svgText(element) {
  const copy = element.cloneNode(true);
  const originals = [element, ...element.querySelectorAll("*")];
  const copies = [copy, ...copy.querySelectorAll("*")];
  originals.forEach((original, k) => {
    const style = getComputedStyle(original);
    for (const name of STYLES) copies[k].style.setProperty(name, style.getPropertyValue(name));
    for (const name of ["class", "tabindex"]) copies[k].removeAttribute(name);
  });
  const page = getComputedStyle(document.body).backgroundColor;
  copy.prepend(draw("rect", { width: "100%", height: "100%", fill: page }));
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(copy);
}
function saveSvg(element, name) {
  saveFile(`${name}.svg`, svgText(element), "image/svg+xml");
}
