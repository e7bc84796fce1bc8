// SPDX-License-Identifier: BSD-3-Clause

/** Arrays of one call have one type, which is also that of its arithmetic. */
export type Floats = Float32Array | Float64Array;

/**
 * Arrays are row-major: `query` (heads, n_queries, headDim), `key` (kvHeads, n_keys, headDim) and `value` (kvHeads,
 * n_keys, valueDim). Each kvHeads-th part of the heads shares a key and a value.
 */
export interface Call<T extends Floats> {
  query: T;
  key: T;
  value?: T;
  headDim: number;
  /** Default: from the length of `value`. */
  valueDim?: number;
  /** Default: 1. */
  heads?: number;
  /** Default: heads. */
  kvHeads?: number;
  /** Number of leading queries, or keys, of each head to use; default: all. */
  nQueries?: number;
  nKeys?: number;
  /** A number, one per head and query, or a law such as "log_n(base=512)"; default: 1 / sqrt(headDim). */
  scale?: number | string | ArrayLike<number>;
  causal?: "top_left" | "bottom_right" | false;
  /** Number of visible keys to the left and to the right of the query; null: all of them. */
  window?: [left: number | null, right: number | null];
  softcap?: number;
}

/** Entropies are in nats; the statistics are those of `attnscale.attention_statistics`, one per head and query. */
export interface Attention<T extends Floats> {
  /** (heads, n_queries, valueDim), if there is a value. */
  output?: T;
  /** (heads, n_queries, n_keys). */
  weights?: T;
  /** Sums of the weights over the queries, (heads, n_keys). */
  received?: Float64Array;
  lse?: T;
  entropy?: T;
  max_score?: T;
  mean_score?: T;
  score_variance?: T;
  concentration?: T;
  max_weight?: T;
  sink_weight?: T;
  renyi2?: T;
  min_score?: T;
  n_visible?: Float64Array;
  argmax?: Float64Array;
  support?: Float64Array;
}

/** Arrays (heads, n_queries, scales); mean and variance are of q . k under the weights. */
export interface EntropyCurve<T extends Floats> {
  scales: Float64Array;
  entropy: T;
  lse: T;
  mean: T;
  variance: T;
}

/** One entry per row, per head, or for the call; flags are 0 or 1. */
export interface ScaleSolution {
  /** The smallest scale >= 0 at which the entropy is at most the target. */
  scale: Float64Array;
  entropy: Float64Array;
  lowest: Float64Array;
  highest: Float64Array;
  converged: Uint8Array;
  feasible: Uint8Array;
}

export interface Law {
  name: string;
  spelling: string;
  /** Meaning of its n, such as "visible keys". */
  meaning: string;
}

export interface Estimate {
  value: number;
  standardError: number;
}

export interface Distortion {
  /** Ratios of squared distances, after the projection over before. */
  least: number;
  most: number;
  mean: number;
  variance: number;
  /** The largest |ratio - 1|. */
  distortion: number;
  /** For each eps the share of pairs that change by more, and the bound of its mean. */
  shares: { eps: number; outside: number; outsideBound: number }[];
}

/** Wrong arguments throw a RangeError; its message names the argument, the rule and the value. */
export interface Core {
  readonly version: string;
  /** Names of the laws, and of the statistics of a row. */
  readonly laws: readonly string[];
  readonly statistics: readonly string[];
  attention<T extends Floats>(
    /** Default `statistics`: lse and entropy. */
    call: Call<T> & { statistics?: string[]; weights?: boolean; received?: boolean },
  ): Attention<T>;
  entropyCurve<T extends Floats>(call: Omit<Call<T>, "scale"> & { scales: ArrayLike<number> }): EntropyCurve<T>;
  solveScale<T extends Floats>(
    call: Omit<Call<T>, "scale" | "softcap"> & {
      /** In nats: one number, or one per result. */
      targetEntropy: number | ArrayLike<number>;
      /** Rows that share a scale; default: "row", none. */
      per?: "row" | "head" | "all";
      tolerance?: number;
    },
  ): ScaleSolution;
  /** A law in the spelling of Python, such as "1.2" or "log_n(base=512)". */
  law(text: string): Law;
  /** The multipliers of q . k at these n. */
  lawScales(law: string, n: ArrayLike<number>, headDim: number): Float64Array;
  /** Expectations over rows of n random keys; their scores have the variance beta squared. */
  expectedStatistics(
    n: number,
    beta: number,
    options?: { headDim?: number; model?: "sphere" | "gaussian" },
  ): { entropy: number; lse: number; concentration: number };
  jlMinDim(n: number, options: { eps: number; failureProbability?: number; tail?: "relaxed" | "chi_square" }): number;
  jlRuleOfThumb(n: number, constant?: number): number;
  /** A random projection of points (n, dim) to k dimensions. */
  jlDistortion(
    points: Floats,
    dim: number,
    options: { k: number; eps?: ArrayLike<number>; matrix?: "gaussian" | "sign" | "sparse"; seed?: number },
  ): Distortion;
  /** The numbers of `attnscale.montecarlo.entropy_vs_length` with rng=seed, one entry per law. */
  entropyVsLength(options: {
    n: number;
    law?: string | number | (string | number)[];
    headDim?: number;
    model?: "sphere" | "gaussian" | "correlated";
    samples?: number;
    seed?: number;
  }): Record<"entropy" | "lse" | "concentration" | "max_weight" | "mean_score" | "score_variance", Estimate>[];
  /** The numbers of `attnscale.montecarlo.dot_product_variance`; `mean` is one number, or those of q and k. */
  dotProductVariance(options: {
    headDim: number;
    distribution?: "normal" | "uniform" | "truncated_normal" | "laplace";
    mean?: number | [number, number];
    std?: number;
    samples?: number;
    seed?: number;
  }): Record<"variance" | "scaled_variance" | "mean" | "kurtosis", Estimate>;
}

/** Load the core from the bytes of attnscale.wasm.gz, or of the module compressed in it. */
export function load(bytes: ArrayBuffer | ArrayLike<number>): Promise<Core>;
