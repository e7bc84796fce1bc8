// SPDX-License-Identifier: BSD-3-Clause

/** Arrays of one call are of one type, which is also that of its arithmetic. */
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
  /** That of the array by default. */
  valueDim?: number;
  /** 1 by default. */
  heads?: number;
  /** As many as heads by default. */
  kvHeads?: number;
  /** The call takes the first so many queries, or keys, of each head; all by default. */
  nQueries?: number;
  nKeys?: number;
  /** A number, one for each head and query, or a law such as "log_n(base=512)"; 1 / sqrt(headDim) by default. */
  scale?: number | string | ArrayLike<number>;
  causal?: "top_left" | "bottom_right" | false;
  /** Keys to the left and to the right of the query that it may see; null: all of them. */
  window?: [left: number | null, right: number | null];
  softcap?: number;
}

/** Entropies are in nats; the statistics are those of `attnscale.attention_statistics`, one for each head and query. */
export interface Attention<T extends Floats> {
  /** (heads, n_queries, valueDim), where a value was given. */
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

/** One entry for each row, head, or the call; flags are 0 or 1. */
export interface ScaleSolution {
  /** The least scale >= 0 at which the entropy is at most the target. */
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
  /** What its n counts, such as "visible keys". */
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
  /** For each eps the share of pairs that change by more than it, and the bound of its mean. */
  shares: { eps: number; outside: number; outsideBound: number }[];
}

/** What is refused is a RangeError, whose message names the argument, the rule and what was seen. */
export interface Core {
  readonly version: string;
  /** Names of the laws, and of the statistics of a row. */
  readonly laws: readonly string[];
  readonly statistics: readonly string[];
  attention<T extends Floats>(
    /** `statistics` are lse and entropy by default. */
    call: Call<T> & { statistics?: string[]; weights?: boolean; received?: boolean },
  ): Attention<T>;
  entropyCurve<T extends Floats>(call: Omit<Call<T>, "scale"> & { scales: ArrayLike<number> }): EntropyCurve<T>;
  solveScale<T extends Floats>(
    call: Omit<Call<T>, "scale" | "softcap"> & {
      /** In nats: one number, or one for each result. */
      targetEntropy: number | ArrayLike<number>;
      /** Which rows share a scale; "row" by default: none do. */
      per?: "row" | "head" | "all";
      tolerance?: number;
    },
  ): ScaleSolution;
  /** A law as it is written in Python: "1.2" and "log_n(base=512)" are laws. */
  law(text: string): Law;
  /** The multipliers of q . k at these n. */
  lawScales(law: string, n: ArrayLike<number>, headDim: number): Float64Array;
  /** Expectations over rows of n random keys whose scores have the variance beta squared. */
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
  /** Under a seed the numbers of `attnscale.montecarlo.entropy_vs_length`, with rng=seed; an entry for each law. */
  entropyVsLength(options: {
    n: number;
    law?: string | number | (string | number)[];
    headDim?: number;
    model?: "sphere" | "gaussian" | "correlated";
    samples?: number;
    seed?: number;
  }): Record<"entropy" | "lse" | "concentration" | "max_weight" | "mean_score" | "score_variance", Estimate>[];
  /** Those of `attnscale.montecarlo.dot_product_variance`; `mean` is one number, or that of q and that of k. */
  dotProductVariance(options: {
    headDim: number;
    distribution?: "normal" | "uniform" | "truncated_normal" | "laplace";
    mean?: number | [number, number];
    std?: number;
    samples?: number;
    seed?: number;
  }): Record<"variance" | "scaled_variance" | "mean" | "kurtosis", Estimate>;
}

/** From the bytes of attnscale.wasm.gz, or of the module that is compressed in it. */
export function load(bytes: ArrayBuffer | ArrayLike<number>): Promise<Core>;
