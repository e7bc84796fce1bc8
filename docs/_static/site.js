// SPDX-License-Identifier: BSD-3-Clause
// What scrolls sideways in a box of its own can be reached by the keyboard: code, tables, wide formulas.
function markScrolling() {
  for (const box of document.querySelectorAll("pre, .table-wrapper, div.math")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
addEventListener("load", () => {
  markScrolling();
  window.MathJax?.startup.promise.then(markScrolling);
});
addEventListener("resize", markScrolling);
