// SPDX-License-Identifier: BSD-3-Clause
// What scrolls sideways in a box of its own can be reached by the keyboard: code, tables, wide formulas.
function markScrolling() {
  for (const box of document.querySelectorAll("pre, .table-wrapper, div.math")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

// A table with a sentence or a call in it: on a phone each row is a card (site.css), whose cells say
// which column they are. A table whose parts are shown as blocks is one for screen readers by its roles.
const SENTENCE = 40; // letters
function makeCards() {
  for (const table of document.querySelectorAll("article table.docutils")) {
    const headings = [...(table.tHead?.rows[0]?.cells ?? [])];
    const rows = [...(table.tBodies[0]?.rows ?? [])];
    const cells = rows.flatMap(row => [...row.cells]);
    const named = headings.slice(1).some(heading => heading.textContent.trim()); // else a list of properties
    if (!named || !cells.some(cell => cell.textContent.trim().length > SENTENCE)) continue;
    table.classList.add("cards");
    table.setAttribute("role", "table");
    for (const row of table.rows) row.setAttribute("role", "row");
    for (const part of [table.tHead, table.tBodies[0]]) part.setAttribute("role", "rowgroup");
    for (const heading of headings) heading.setAttribute("role", "columnheader");
    for (const cell of cells) {
      cell.setAttribute("role", "cell");
      const heading = headings[cell.cellIndex];
      if (cell.cellIndex === 0 || !heading?.textContent.trim() || !cell.textContent.trim()) continue;
      const shown = document.createElement("span");
      shown.className = "heading-of-cell";
      shown.append(...[...(heading.querySelector("p") ?? heading).cloneNode(true).childNodes], ": ");
      (cell.querySelector("p") ?? cell).prepend(shown);
    }
  }
}

// The contents of a long page follow: the entry of the section that is read stays in sight.
function followContents() {
  const box = document.querySelector(".toc-scroll");
  const entry = [...(box?.querySelectorAll(".scroll-current > a") ?? [])].pop();
  if (!entry) return;
  const [inner, outer] = [entry.getBoundingClientRect(), box.getBoundingClientRect()];
  if (inner.top < outer.top || inner.bottom > outer.bottom) {
    box.scrollTo({top: box.scrollTop + inner.top - outer.top - outer.height / 2, behavior: "instant"});
  }
}

addEventListener("load", () => {
  const typeset = window.MathJax?.startup.promise ?? Promise.resolve();
  typeset.then(makeCards).then(markScrolling);
  markScrolling();
  const contents = document.querySelector(".toc-tree"); // in which the theme marks the section
  if (contents) {
    new MutationObserver(followContents).observe(contents, {attributeFilter: ["class"], subtree: true});
  }
});
addEventListener("resize", markScrolling);
