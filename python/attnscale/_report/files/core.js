// The core in WebAssembly, in a worker that lives as long as the page, and what is asked of it.

const link = { worker: null, asked: 0, waiting: new Map(), file: null };
const asSentence = (text) => text[0].toUpperCase() + text.slice(1) + (text.endsWith("?") ? "" : ".");

/** The answer of the worker, which does one thing after the other; an Error says in a line what it refuses. */
function ask(task, content = {}, tell = () => {}) {
  const id = ++link.asked;
  return new Promise((keep, fail) => {
    link.waiting.set(id, { keep, fail, tell });
    link.worker.postMessage({ id, task, ...content });
  });
}

/** Start the worker, with the reader's file if there is one. */
function startWorker() {
  const text = [byId("core-module").textContent, byId("core-worker").textContent].join("\n");
  const address = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  link.worker = new Worker(address);
  link.worker.addEventListener("message", ({ data: { id, share, error, found } }) => {
    const { keep, fail, tell } = link.waiting.get(id);
    if (share !== undefined) return tell(share);
    link.waiting.delete(id);
    if (error === undefined) keep(found);
    else fail(new Error(error));
  });
  ask("start", { wasm: byId("core-wasm").textContent.trim(), file: link.file }).catch(() => {}); // what follows says it
}

/** End all that is being measured: the worker goes, and a new one comes. */
function stopWorker() {
  const waiting = [...link.waiting.values()];
  link.waiting.clear();
  link.worker.terminate();
  startWorker();
  for (const { fail } of waiting) fail(new Error("stopped"));
}
if (typeof WebAssembly === "object") startWorker();
