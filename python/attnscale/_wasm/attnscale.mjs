// SPDX-License-Identifier: BSD-3-Clause
//
// The core of attnscale in WebAssembly: typed arrays in, plain objects out. attnscale.d.mts declares the
// functions. Works in Node and in a page; the caller passes the bytes of attnscale.wasm.gz.

const ALIGNMENTS = [undefined, "top_left", "bottom_right"];
const MODELS = ["sphere", "gaussian", "correlated"];
const DISTRIBUTIONS = ["uniform", "normal", "truncated_normal", "laplace"];
const PROJECTIONS = ["gaussian", "sign", "sparse"];
const PER = ["row", "head", "all"];
const INTEGERS = ["n_visible", "argmax", "support"];

/** Compiles the module, from plain or compressed bytes, and returns its functions. */
export async function load(bytes) {
  let module = new Uint8Array(bytes);
  if (module[0] === 0x1f) {
    const stream = new Blob([module]).stream().pipeThrough(new DecompressionStream("gzip"));
    module = await new Response(stream).arrayBuffer();
  }
  return new Core(await WebAssembly.compile(module));
}

function refuse(message) {
  throw new RangeError(message);
}

function choose(name, value, choices) {
  const at = choices.indexOf(value);
  return at >= 0 ? at : refuse(`${name} must be one of ${choices.filter(Boolean).join(", ")}, got ${String(value)}`);
}

function check(options, known) {
  for (const name of Object.keys(options))
    if (!known.includes(name)) refuse(`there is no option ${name}; there are ${known.join(", ")}`);
  return options;
}

/** Number of rows per head: `array` has heads times rows times dim numbers. */
function rowsOf(name, array, heads, dim) {
  if (!(array instanceof Float32Array || array instanceof Float64Array))
    refuse(`${name} must be a Float32Array or a Float64Array`);
  const rows = array.length / heads / dim;
  if (!Number.isInteger(rows)) refuse(`${name} must have rows of ${dim} numbers for ${heads} heads, got ${array.length} numbers`);
  return rows;
}

const CALL = ["query", "key", "value", "headDim", "valueDim", "heads", "kvHeads", "nQueries", "nKeys",
  "scale", "causal", "window", "softcap"];

class Core {
  #module;
  #instance = null;

  constructor(module) {
    this.#module = module;
    this.version = this.#run((core) => core.textOf("attnscale_version"));
    this.laws = this.#run((core) => core.textOf("attnscale_laws")).split("\n");
    this.statistics = this.#run((core) => core.textOf("attnscale_statistics")).split("\n");
  }

  /** Runs one call: its memory is freed at the end; after a trap the instance is not used again. */
  #run(body) {
    this.#instance ??= instantiate(this.#module);
    const call = new Memory(this.#instance.exports);
    try {
      return body(call);
    } catch (error) {
      if (!(error instanceof WebAssembly.RuntimeError)) throw error;
      const { exports } = this.#instance;
      this.#instance = null;
      const said = exports.attnscale_status() ? call.read(exports.attnscale_text()) : `memory is short (${error.message})`;
      throw new RangeError(said, { cause: error });
    } finally {
      if (this.#instance) call.free();
    }
  }

  /** The struct `call` of cpp/wasm/interface.cpp, and type and shape of the results. */
  #describe(memory, options) {
    const { query, key, value, headDim, heads = 1, kvHeads = heads, scale, causal, window = [], softcap } = options;
    const type = query?.constructor;
    for (const [name, array] of Object.entries({ key, value }))
      if (array !== undefined && array.constructor !== type) refuse(`${name} must be of the type of query`);
    const queryRows = rowsOf("query", query, heads, headDim);
    const keyRows = rowsOf("key", key, kvHeads, headDim);
    const { nQueries = queryRows, nKeys = keyRows } = options;
    if (nQueries > queryRows) refuse(`nQueries must be at most ${queryRows}, got ${nQueries}`);
    if (nKeys > keyRows) refuse(`nKeys must be at most ${keyRows}, got ${nKeys}`);
    const valueDim = value ? (options.valueDim ?? value.length / kvHeads / keyRows) : 0;
    if (value && rowsOf("value", value, kvHeads, valueDim) !== keyRows) refuse(`value must have ${keyRows} rows a head`);
    const perRow = typeof scale === "object";
    if (perRow && scale.length !== heads * nQueries) refuse(`scale must be one number, a law or ${heads * nQueries} numbers, got ${scale.length}`);
    const given = [type === Float64Array ? 1 : 0, heads, kvHeads, nQueries, nKeys, headDim, valueDim, queryRows, keyRows,
      memory.put(query), memory.put(key), value ? memory.put(value) : 0,
      choose("causal", causal || undefined, ALIGNMENTS), window[0] ?? NaN, window[1] ?? NaN, softcap ?? NaN,
      typeof scale === "number" ? scale : NaN, perRow ? memory.put(Float64Array.from(scale)) : 0,
      typeof scale === "string" ? memory.putText(scale) : 0];
    return { address: memory.put(Float64Array.from(given)), type, heads, nQueries, nKeys, valueDim, rows: heads * nQueries };
  }

  attention(options) {
    check(options, [...CALL, "statistics", "weights", "received"]);
    return this.#run((memory) => {
      const call = this.#describe(memory, options);
      const { statistics = ["lse", "entropy"] } = options;
      const found = {};
      const output = options.value ? memory.room(found, "output", call.type, call.rows * call.valueDim) : 0;
      const wanted = statistics.map((each) => choose("statistics", each, this.statistics));
      const places = new Uint32Array(this.statistics.length);
      for (const at of wanted) {
        const name = this.statistics[at];
        places[at] = memory.room(found, name, INTEGERS.includes(name) ? BigInt64Array : call.type, call.rows);
      }
      const of = options.received ? {} : found;
      const weights = options.weights || options.received ? memory.room(options.weights ? found : of, "weights", call.type, call.rows * call.nKeys) : 0;
      const received = options.received ? memory.room(found, "received", Float64Array, call.heads * call.nKeys) : 0;
      memory.call("attnscale_attend", call.address, output, memory.put(places), weights, received);
      memory.collect();
      for (const name of INTEGERS) if (found[name]) found[name] = Float64Array.from(found[name], Number);
      return found;
    });
  }

  entropyCurve(options) {
    check(options, [...CALL, "scales"]);
    return this.#run((memory) => {
      const call = this.#describe(memory, options);
      const scales = Float64Array.from(options.scales);
      const found = { scales };
      const places = ["entropy", "lse", "mean", "variance"].map((name) => memory.room(found, name, call.type, call.rows * scales.length));
      memory.call("attnscale_entropy_curve", call.address, memory.put(scales), scales.length, ...places);
      return memory.collect(found);
    });
  }

  solveScale(options) {
    check(options, [...CALL, "targetEntropy", "per", "tolerance"]);
    return this.#run((memory) => {
      const call = this.#describe(memory, options);
      const sharing = choose("per", options.per ?? "row", PER);
      const n = [call.rows, call.heads, 1][sharing];
      const one = typeof options.targetEntropy === "number";
      const target = Float64Array.from(one ? [options.targetEntropy] : options.targetEntropy);
      if (!one && target.length !== n) refuse(`targetEntropy must be one number or ${n} of them, got ${target.length}`);
      const found = {};
      const numbers = ["scale", "entropy", "lowest", "highest"].map((name) => memory.room(found, name, Float64Array, n));
      const flags = ["converged", "feasible"].map((name) => memory.room(found, name, Uint8Array, n));
      memory.call("attnscale_solve_scale", call.address, memory.put(target), one ? 1 : 0, sharing, options.tolerance ?? 0,
        memory.put(Uint32Array.from(numbers)), memory.put(Uint32Array.from(flags)));
      return memory.collect(found);
    });
  }

  law(text) {
    return this.#run((memory) => {
      const [name, spelling, meaning] = memory.textOf("attnscale_law", memory.putText(text)).split("\n");
      return { name, spelling, meaning };
    });
  }

  lawScales(law, n, headDim) {
    return this.#run((memory) => {
      const counts = Float64Array.from(n);
      const found = {};
      const place = memory.room(found, "scales", Float64Array, counts.length, counts);
      memory.call("attnscale_law_scales", memory.putText(law), place, counts.length, headDim);
      return memory.collect(found).scales;
    });
  }

  expectedStatistics(n, beta, { headDim = 64, model = "sphere" } = {}) {
    return this.#run((memory) => {
      const dim = choose("model", model, MODELS.slice(0, 2)) ? 0 : Math.max(headDim, 1);
      const [lse, entropy, concentration] = memory.numbers(3, (out) => memory.call("attnscale_expected", n, beta, dim, out));
      return { entropy, lse, concentration };
    });
  }

  jlMinDim(n, { eps, failureProbability = NaN, tail = "relaxed" }) {
    const kind = choose("tail", tail, ["relaxed", "chi_square"]);
    return this.#run((memory) => memory.call("attnscale_jl_min_dim", n, eps, failureProbability, kind));
  }

  jlRuleOfThumb(n, constant = 8) {
    return this.#run((memory) => memory.call("attnscale_jl_rule_of_thumb", n, constant));
  }

  jlDistortion(points, dim, { k, eps = [0.5], matrix = "gaussian", seed = 0 }) {
    const n = rowsOf("points", points, 1, dim);
    const limits = Float64Array.from(eps);
    const kind = choose("matrix", matrix, PROJECTIONS);
    return this.#run((memory) => {
      const at = memory.put(Float32Array.from(points));
      const [least, most, mean, variance, distortion, ...shares] = memory.numbers(5 + 2 * limits.length, (out) =>
        memory.call("attnscale_jl_distortion", at, n, dim, k, kind, seed, memory.put(limits), limits.length, out));
      const all = Array.from(limits, (each, i) => ({ eps: each, outside: shares[2 * i], outsideBound: shares[2 * i + 1] }));
      return { least, most, mean, variance, distortion, shares: all };
    });
  }

  entropyVsLength({ n, law = ["standard"], headDim = 64, model = "sphere", samples = 1000, seed = 0 }) {
    const laws = [].concat(law);
    return this.#run((memory) => memory.estimates(laws.map(String), (out) =>
      memory.textOf("attnscale_entropy_vs_length", n, headDim, choose("model", model, MODELS), memory.putText(laws.join("\n")), samples, seed, out)));
  }

  dotProductVariance({ headDim, distribution = "normal", mean = 0, std = 1, samples = 102400, seed = 0 }) {
    const [queryMean, keyMean] = [].concat(mean, mean);
    return this.#run((memory) => memory.estimates(["all"], (out) =>
      memory.textOf("attnscale_dot_product_variance", headDim, choose("distribution", distribution, DISTRIBUTIONS), queryMean, keyMean, std, samples, seed, out)))[0];
  }
}

/** Instantiates the module; imports of the C library (environment, clock, files) fail with "not supported". */
function instantiate(module) {
  const imports = {};
  for (const each of WebAssembly.Module.imports(module)) (imports[each.module] ??= {})[each.name] = () => 52; // "not supported"
  const instance = new WebAssembly.Instance(module, imports);
  instance.exports._initialize?.();
  return instance;
}

/** Memory of one call in the module. */
class Memory {
  #exports;
  #taken = [];
  #rooms = [];

  constructor(exports) {
    this.#exports = exports;
  }

  call(name, ...values) {
    return this.#exports[name](...values);
  }

  #take(bytes) {
    const address = this.#exports.attnscale_allocate(bytes) >>> 0;
    this.#taken.push(address);
    return address;
  }

  put(array) {
    const address = this.#take(array.byteLength);
    new array.constructor(this.#exports.memory.buffer, address, array.length).set(array);
    return address;
  }

  putText(text) {
    return this.put(new TextEncoder().encode(`${text}\0`));
  }

  /** Allocates a result, which collect() copies to to[name]. */
  room(to, name, type, length, filled) {
    const bytes = length * type.BYTES_PER_ELEMENT;
    if (!(bytes < 2 ** 32)) refuse(`${name} must be smaller than 4 GiB, got ${bytes} bytes`);
    const address = filled ? this.put(filled) : this.#take(bytes);
    this.#rooms.push({ to, name, type, length, address });
    return address;
  }

  collect(result) {
    for (const { to, name, type, length, address } of this.#rooms) to[name] = new type(this.#exports.memory.buffer, address, length).slice();
    return result;
  }

  numbers(count, write) {
    const found = {};
    write(this.room(found, "all", Float64Array, count));
    this.collect();
    return found.all;
  }

  /** One object of quantities per entry. */
  estimates(entries, write) {
    let names;
    const most = 8;
    const numbers = this.numbers(2 * most * entries.length, (out) => (names = write(out).split("\n")));
    return entries.map((entry, i) => {
      const found = {};
      names.forEach((name, j) => {
        const at = 2 * (i * names.length + j);
        found[name] = { value: numbers[at], standardError: numbers[at + 1] };
      });
      return found;
    });
  }

  textOf(name, ...values) {
    return this.read(this.call(name, ...values));
  }

  read(address) {
    const bytes = new Uint8Array(this.#exports.memory.buffer, address >>> 0);
    return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
  }

  free() {
    for (const address of this.#taken) this.#exports.attnscale_free(address);
  }
}
