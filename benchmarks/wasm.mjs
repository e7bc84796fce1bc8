// SPDX-License-Identifier: BSD-3-Clause
//
// Seconds of forward passes in this engine: the module, and a plain loop over typed arrays. Run by benchmarks/wasm.py, in
// Node and in Chromium.

/** Plain attention of a page: a row of scores, its softmax, the sum of values. */
function plain(query, key, value, output, d) {
  const n = query.length / d;
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

/** Seconds of the shortest of three samples, each of 30 ms and more. */
function seconds(run) {
  const sample = (calls) => {
    const begin = performance.now();
    for (let i = 0; i < calls; i++) run();
    return (performance.now() - begin) / calls / 1000;
  };
  let least = Math.max(sample(1), 1e-5);
  const calls = Math.ceil(0.03 / least);
  for (let i = 0; i < (least > 0.2 ? 1 : 3); i++) least = Math.min(least, sample(calls));
  return least;
}

/** Seconds by type and n, as for `here` in benchmarks/wasm.py. */
export function measure(core, sizes, headDim) {
  const found = {};
  for (const type of [Float32Array, Float64Array])
    for (const n of sizes) {
      const numbers = () => type.from({ length: n * headDim }, () => Math.random() * 2 - 1);
      const [query, key, value] = [numbers(), numbers(), numbers()];
      const output = new type(n * headDim);
      const given = { query, key, value, headDim };
      found[`${type === Float32Array ? "float32" : "float64"} ${n}`] = {
        output: seconds(() => core.attention({ ...given, statistics: [] })),
        statistics: seconds(() => core.attention(given)),
        plain: seconds(() => plain(query, key, value, output, headDim)),
      };
    }
  return found;
}
