// SPDX-License-Identifier: BSD-3-Clause
//
// From the scores of a tile to weights and their sums, under a normalizer of normalizers-inl.hpp.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/exp-inl.hpp"
#include "kernels/simd/log-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/softmax/normalizers-inl.hpp"
#include "kernels/softmax/online-inl.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/mask-inl.hpp"

namespace {

template <class T>
inline T first_reference_of(normalizer rule) {
  return with_weights(rule,
                      [](auto weights) { return decltype(weights)::template first_reference<T>; });
}

/// Traits of a normalizer's struct.
inline bool is_exponential(normalizer rule) {
  return with_weights(rule, [](auto weights) { return decltype(weights)::is_exponential; });
}
inline bool adds_number(normalizer rule) {
  return with_weights(rule, [](auto weights) { return decltype(weights)::adds_number; });
}

inline double output_factor(const attend_block& b, int row) {
  return with_weights(b.rule,
                      [&](auto weights) { return weights.output_factor(finished_row(b, row)); });
}

inline double output_power(const attend_block& b, int row) {
  return with_weights(b.rule,
                      [&](auto weights) { return weights.output_power(finished_row(b, row)); });
}

/// x times 2^power, in factors between 2^-most_power and 2^most_power.
template <class T>
inline void multiply_by_power(T* x, int64_t count, double power) {
  while (power != 0) {
    const double most = most_power<T>;
    const double step = power > most ? most : power < -most ? -most : power;
    const T factor = static_cast<T>(__builtin_exp2(step));
    for (int64_t i = 0; i < count; ++i) x[i] *= factor;
    power -= step;
  }
}

/// row_sums::top_weight of a finished row.
inline double weight_of_top(const attend_block& b, int row, bool empty) {
  return with_weights(b.rule, [&](auto weights) -> double {
    if constexpr (!decltype(weights)::is_exponential)
      return empty ? 0 : weights.weight_of_top(finished_row(b, row));
    return 0;
  });
}

/// Weight of a score, 0 for a masked key; adds its contribution to sum.
template <class W, bool Masked, bool Bounded, class T>
ATTNSCALE_INLINE vec<T> weigh_score(vec<T> s, const pointwise_lanes<T>& row, vec<T>& sum) {
  vec<T> counted, p = W::template weight<Masked, Bounded>(s, row, counted);
  if constexpr (Masked) {
    const vec<T> zero = broadcast(T(0));
    const vec_mask<T> masked = s == broadcast(masked_score<T>);
    p = xsimd::select(masked, zero, p);
    counted = xsimd::select(masked, zero, counted);
  }
  sum = sum + counted;
  return p;
}

/// scores[j * step] <- weights for j in [begin, end); sums[lane] += their contributions.
template <class W, bool Masked, bool Bounded, class T>
inline void weigh_scores(const pointwise_lanes<T>& row, int begin, int end, ptrdiff_t step,
                         T* scores, double* sums) {
  constexpr int parts = 4;
  vec<T> sum[parts];
  for (int i = 0; i < parts; ++i) sum[i] = broadcast(T(0));
  int j = begin;
  for (; j + parts <= end; j += parts)
#pragma GCC unroll 4
    for (int i = 0; i < parts; ++i) {
      T* at = scores + (j + i) * step;
      store(at, weigh_score<W, Masked, Bounded>(load(at), row, sum[i]));
    }
  for (; j < end; ++j) {
    T* at = scores + j * step;
    store(at, weigh_score<W, Masked, Bounded>(load(at), row, sum[0]));
  }
  add_to_double(sums, (sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/// Weights of a tile. Bounded: scores with the bias are within most_exponent.
template <class W, bool Masked, class T>
inline void absorb_pointwise(bool bounded, pointwise_lanes<T> row, int begin, int end,
                             ptrdiff_t step, T* scores, double* sums) {
  if constexpr (W::has_bounded_form && !Masked)
    if (bounded) return weigh_scores<W, Masked, true>(row, begin, end, step, scores, sums);
  if (W::follows_top && !Masked && any_large(row.reference))
    row.scale = round_large(row.scale, row.reference, begin, end, step, scores, scores);
  weigh_scores<W, Masked, false>(row, begin, end, step, scores, sums);
}

/// support += 1, per lane, for every key of [begin, end) whose score times `scale`, or whose
/// weight, is positive.
template <class T>
inline void count_positive(vec<T> scale, int begin, int end, ptrdiff_t step, const T* scores,
                           double* support) {
  const vec<T> zero = broadcast(T(0)), one = broadcast(T(1));
  vec<T> count = zero;
  for (int j = begin; j < end; ++j)
    count = count + xsimd::select(load(scores + j * step) * scale > zero, one, zero);
  add_to_double(support, count);
}

/// Adds to the sums for statistics of a distribution, from the finished weights of the keys [begin,
/// end), per lane: first += w ln w, squares += w^2. In double, so that squares of small or large
/// weights stay in range.
template <class T>
inline void sum_moments(int begin, int end, ptrdiff_t step, const T* weights, double* first,
                        double* squares) {
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
    }
  }
}

/// Whether the largest and smallest scores of a tile are within most_exponent. Rows with NaN may
/// pass: they lose nothing.
template <class T>
inline bool is_bounded(vec<T> high, vec<T> low, vec<T> bias) {
  const vec<T> most = broadcast(most_exponent<T>);
  return !any<T>((high + bias > most) | (low + bias < -most));
}

/// Turns rows whose largest score is infinite into NaN, even if every weight is finite.
template <class T>
inline void propagate_large(vec<T> high, double* sums) {
  if (!any<T>(high == broadcast(limits<T>::infinity))) return;
  T lanes[width<T>];
  store(lanes, high);
  for (int r = 0; r < width<T>; ++r)
    if (lanes[r] == limits<T>::infinity) sums[r] = __builtin_nan("");
}

/// Term added to the scores of a row, in base 2.
template <class T>
inline T added_bias(const attend_block& b, int row) {
  const double* number = row < b.rows ? number_of_row(b, row) : nullptr;
  return number && adds_number(b.rule) ? static_cast<T>(*number * log2e) : T(0);
}

}  // namespace
