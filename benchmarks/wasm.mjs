// SPDX-License-Identifier: BSD-3-Clause
//
// Seconds of one forward pass in this engine: the module, and a plain loop over typed arrays. Run by
// benchmarks/wasm.py.
import { readFileSync } from "node:fs";

const [script, module, size, dim] = process.argv.slice(2);
const { load } = await import(script);
const core = await load(readFileSync(module));
const n = Number(size);
const d = Number(dim);

/** What a page would write: a row of scores, its softmax, the sum of values. */
function plain(query, key, value, output) {
  const scale = 1 / Math.sqrt(d);
  const weights = new query.constructor(n);
  for (let i = 0; i < n; i++) {
    let most = -Infinity;
    for (let j = 0; j < n; j++) {
      let score = 0;
      for (let c = 0; c < d; c++) score += query[i * d + c] * key[j * d + c];
      weights[j] = score *= scale;
      if (score > most) most = score;
    }
    let total = 0;
    for (let j = 0; j < n; j++) total += weights[j] = Math.exp(weights[j] - most);
    output.fill(0, i * d, (i + 1) * d);
    for (let j = 0; j < n; j++) {
      const weight = weights[j] / total;
      for (let c = 0; c < d; c++) output[i * d + c] += weight * value[j * d + c];
    }
  }
}

/** The shortest of `rounds` runs. */
function seconds(run, rounds) {
  let least = Infinity;
  for (let i = 0; i < rounds; i++) {
    const begin = performance.now();
    run();
    least = Math.min(least, performance.now() - begin);
  }
  return least / 1000;
}

const found = {};
for (const type of [Float32Array, Float64Array]) {
  const numbers = () => type.from({ length: n * d }, () => Math.random() * 2 - 1);
  const [query, key, value] = [numbers(), numbers(), numbers()];
  const output = new type(n * d);
  const given = { query, key, value, headDim: d };
  found[type === Float32Array ? "float32" : "float64"] = {
    forward: seconds(() => core.attention({ ...given, statistics: [] }), 30),
    statistics: seconds(() => core.attention(given), 30),
    plain: seconds(() => plain(query, key, value, output), 8),
  };
}
console.log(JSON.stringify(found));
