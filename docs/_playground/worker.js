// What the worker of the playground adds to that of a report.

/** A scale as the core takes it: a number or a law, whose n is known where nothing but the length is. */
function scaleOfRows(law, head_dim) {
  const scale = scaleOf(law, head_dim);
  if (scale < 0) throw new Error(`the multiple must be at least 0, got ${law}`);
  if (typeof scale === "number") return scale;
  const { name, meaning } = core.law(scale);
  if (!(meaning in COUNTS))
    throw new Error(`law ${name} has no scale for random keys of a length: its n is ${meaning}`);
  return scale;
}

/** The multiplier of q . k in a row that sees n keys: its position is n - 1. */
function scaleAt(scale, head_dim, n) {
  if (typeof scale === "number") return scale;
  return core.lawScales(scale, [COUNTS[core.law(scale).meaning](n - 1, n)], head_dim)[0];
}

/** Weights [(alpha - 1) s - tau]_+^(1 / (alpha - 1)) of the scores, exactly: the k largest have one, and give tau. */
function sparse(scores, alpha) {
  const z = scores.map((each) => (alpha - 1) * each);
  const sorted = [...z].sort((a, b) => b - a);
  let tau;
  for (let k = 1; k <= sorted.length; k++) {
    const mean = sorted.slice(0, k).reduce((sum, each) => sum + each / k, 0);
    const spread = sorted.slice(0, k).reduce((sum, each) => sum + (each - mean) ** 2, 0);
    const next = alpha === 2 ? mean - 1 / k : mean - Math.sqrt((1 - spread) / k); // NaN where k keys are too many
    if (!(next < sorted[k - 1])) break;
    tau = next;
  }
  return z.map((each) => Math.max(each - tau, 0) ** (1 / (alpha - 1)));
}

Object.assign(TASKS, {
  /** Expected entropy of rows of random keys on a sphere. */
  expected({ law, head_dim, lengths }) {
    const scale = scaleOfRows(law, head_dim);
    return lengths.map((n) => core.expectedStatistics(n, scaleAt(scale, head_dim, n) * Math.sqrt(head_dim), { headDim: head_dim }).entropy);
  },

  /** Mean entropy of rows that are drawn, under each law. */
  drawn: ({ laws, head_dim, n, samples, seed }) =>
    core.entropyVsLength({ n, law: laws.map((law) => scaleOfRows(law, head_dim)), headDim: head_dim, samples, seed }).map(({ entropy }) => entropy),

  /** The least k after Johnson and Lindenstrauss for each error, and 8 ln n. */
  estimates: ({ n, errors }) => ({ thumb: core.jlRuleOfThumb(n), least: errors.map((eps) => core.jlMinDim(n, { eps })) }),

  /** The largest change of a squared distance between n points, each at distance 1 from all others. */
  projected({ n, k, seed }) {
    const corners = new Float32Array(n * n);
    for (let i = 0; i < n; i++) corners[i * n + i] = Math.SQRT1_2;
    return core.jlDistortion(corners, n, { k, seed }).distortion;
  },

  /** Weights of a few keys, their entropy, and how many have one. */
  weights({ scores, scale }) {
    const key = Float64Array.from(scores);
    const softmax = core.attention({ query: Float64Array.of(1), key, headDim: 1, scale, statistics: ["entropy"], weights: true }).weights;
    const scaled = scores.map((each) => scale * each);
    return [[...softmax], sparse(scaled, 1.5), sparse(scaled, 2)].map((weights) => ({
      weights,
      entropy: weights.reduce((sum, p) => (p > 0 ? sum - p * Math.log(p) : sum), 0),
      support: weights.filter((p) => p > 0).length,
    }));
  },
});
