// SPDX-License-Identifier: BSD-3-Clause
//
// Weights that are functions of single scores, before a factor of the row (output_factor):
//   sigmoid  1 / (1 + e^-(s + b))      relu  max(s, 0), or its square
//   softpick max(e^s - 1, 0), relative to a reference r >= 0 that follows the running maximum;
//            its row is divided by the sum of |e^s - 1|
#pragma once

namespace {

/// The lanes of one vector of rows.
template <class T>
struct pointwise_lanes {
  vec<T> scale;      ///< scale * log2(e); not read for finished scores
  vec<T> bias;       ///< of sigmoid, in base 2
  vec<T> reference;  ///< of softpick
  vec<T> floor;      ///< 2^-reference

  ATTNSCALE_INLINE pointwise_lanes(vec<T> row_scale, vec<T> row_bias, vec<T> row_reference)
      : scale(row_scale),
        bias(row_bias),
        reference(row_reference),
        floor(exp2(clamp_exponent(-row_reference))) {}
};

/// Up to here 2^t needs no clamp.
template <class T>
constexpr T most_exponent = sizeof(T) == 4 ? T(120) : T(1000);

/// 1 / (1 + 2^t); 0 beyond the range of exp2. NaN stays. Bounded: |t| is at most most_exponent.
template <bool Bounded, class T>
ATTNSCALE_INLINE vec<T> logistic(vec<T> t) {
  const vec<T> one = broadcast(T(1)), most = broadcast(most_exponent<T>);
  if constexpr (Bounded) return reciprocal(one + exp2(t));
  const vec<T> p = reciprocal(one + exp2(min_or(most, clamp_exponent(t))));
  return xsimd::select(t > most, broadcast(T(0)), p);
}

/// The weight of a score, and its share of the sum that the row may be divided by.
template <class T, normalizer Rule, bool Masked, bool Bounded>
ATTNSCALE_INLINE vec<T> pointwise_weight(vec<T> s, const pointwise_lanes<T>& row, vec<T>& sum) {
  const vec<T> zero = broadcast(T(0));
  vec<T> p, counted;
  if constexpr (Rule == normalizer::sigmoid) {
    p = logistic<Bounded, T>(Masked ? -row.bias - s : fma(s, -row.scale, -row.bias));
    counted = p;
  } else if constexpr (Rule == normalizer::softpick) {
    const vec<T> t = Masked ? s - row.reference : fma(s, row.scale, -row.reference);
    const exp2_parts<T> e = split_exp2(clamp_exponent(t));
    // 2^t - floor without cancellation where both are near 1.
    const vec<T> difference = fma(e.power, e.q * e.f, e.power - row.floor);
    p = max_or(zero, difference);
    counted = xsimd::abs(difference);
  } else {
    p = max_or(zero, Masked ? s : s * row.scale) * broadcast(T(0.69314718055994530942));
    if constexpr (Rule == normalizer::squared_relu) p = p * p;
    counted = p;
  }
  if constexpr (Masked) {
    const vec_mask<T> gone = s == broadcast(hidden<T>);
    p = xsimd::select(gone, zero, p);
    counted = xsimd::select(gone, zero, counted);
  }
  sum = sum + counted;
  return p;
}

/// scores[j * step] <- weights for j in [begin, end); sums[lane] += what they add up to.
template <class T, normalizer Rule, bool Masked, bool Bounded = false>
inline void absorb_scores(const pointwise_lanes<T>& row, int begin, int end, ptrdiff_t step,
                          T* scores, double* sums) {
  constexpr int parts = 4;
  vec<T> sum[parts];
  for (int i = 0; i < parts; ++i) sum[i] = broadcast(T(0));
  int j = begin;
  for (; j + parts <= end; j += parts)
#pragma GCC unroll 4
    for (int i = 0; i < parts; ++i) {
      T* at = scores + (j + i) * step;
      store(at, pointwise_weight<T, Rule, Masked, Bounded>(load(at), row, sum[i]));
    }
  for (; j < end; ++j) {
    T* at = scores + j * step;
    store(at, pointwise_weight<T, Rule, Masked, Bounded>(load(at), row, sum[0]));
  }
  add_to_double(sums, (sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/// What the statistics of a distribution need of the finished weights of the keys [begin, end), a
/// lane each: first += w ln w, squares += w^2, support += 1 if w > 0. In double, so that squares
/// of small or large weights stay.
template <class T>
inline void sum_moments(int begin, int end, ptrdiff_t step, const T* weights, double* first,
                        double* squares, double* support) {
  constexpr int w = width<T>;
  const vec<T> least = broadcast(limits<T>::least_normal);
  for (int j = begin; j < end; ++j) {
    const T* at = weights + j * step;
    T minus_logs[w];
    store(minus_logs, minus_log(max_or(least, load(at)), broadcast(T(0))));
    for (int r = 0; r < w; ++r) {
      const double weight = static_cast<double>(at[r]);
      first[r] -= weight * static_cast<double>(minus_logs[r]);
      squares[r] += weight * weight;
      support[r] += weight > 0 ? 1 : 0;
    }
  }
}

/// Bounded: no score, with the bias, is beyond most_exponent.
template <class T, bool Masked>
inline void absorb_pointwise(normalizer rule, bool bounded, const pointwise_lanes<T>& row,
                             int begin, int end, ptrdiff_t step, T* scores, double* sums) {
  switch (rule) {
    case normalizer::sigmoid:
      if (!Masked && bounded)
        return absorb_scores<T, normalizer::sigmoid, false, true>(row, begin, end, step, scores,
                                                                  sums);
      return absorb_scores<T, normalizer::sigmoid, Masked>(row, begin, end, step, scores, sums);
    case normalizer::relu:
      return absorb_scores<T, normalizer::relu, Masked>(row, begin, end, step, scores, sums);
    case normalizer::squared_relu:
      return absorb_scores<T, normalizer::squared_relu, Masked>(row, begin, end, step, scores,
                                                                sums);
    default:
      pointwise_lanes<T> rounded = row;
      if (!Masked && any_large(row.reference))
        rounded.scale = round_large(row.scale, row.reference, begin, end, step, scores, scores);
      return absorb_scores<T, normalizer::softpick, Masked>(rounded, begin, end, step, scores,
                                                            sums);
  }
}

/// Whether the largest and smallest scores of a tile are within most_exponent. Rows with a NaN may
/// pass: nothing is lost of them.
template <class T>
inline bool is_bounded(vec<T> high, vec<T> low, vec<T> bias) {
  const vec<T> most = broadcast(most_exponent<T>);
  return !any<T>((high + bias > most) | (low + bias < -most));
}

/// Rows whose largest score is infinite are NaN, also where every weight is finite.
template <class T>
inline void poison_large(vec<T> high, double* sums) {
  if (!any<T>(high == broadcast(limits<T>::infinity))) return;
  T lanes[width<T>];
  store(lanes, high);
  for (int r = 0; r < width<T>; ++r)
    if (lanes[r] == limits<T>::infinity) sums[r] = __builtin_nan("");
}

/// Where the reference of a row begins: softpick's never falls below 0.
template <class T>
inline T first_reference(normalizer rule) {
  return rule == normalizer::softpick ? T(0) : limits<T>::lowest;
}

/// What sigmoid adds to the score of a row, in base 2.
template <class T>
inline T sigmoid_bias(const attend_block& b, int row) {
  const bool given = b.rule == normalizer::sigmoid && b.constant && row < b.rows;
  return given ? static_cast<T>(b.constant[row * b.constant_row] * log2e) : T(0);
}

}  // namespace
