// The page is made from its data, and again from those of a reader's file: `fillPage` holds all other scripts.

const byId = (id) => document.getElementById(id);
const read = (id) => JSON.parse(byId(id).textContent);
const COLOURS = read("report-colours");
const EMPTY = byId("page").cloneNode(true);
let leaving = new AbortController(); // ends what the page before listens to

/** Make the page from data that follow the schema attnscale.report/2. */
function showPage(data) {
  leaving.abort();
  leaving = new AbortController();
  byId("page").replaceWith(EMPTY.cloneNode(true));
  fillPage(data, leaving.signal);
}
