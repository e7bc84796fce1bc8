// SPDX-License-Identifier: BSD-3-Clause
//
// From a row's list of candidates to weights, statistics and the sum of values.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/simd.hpp"
#include "kernels/sparse/candidates-inl.hpp"
#include "kernels/sparse/tiles-inl.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/rows-inl.hpp"

namespace {

using attnscale::detail::attend_block;
using attnscale::detail::row_report;
using attnscale::detail::wanted_moments;

/// Reduces the list to its k largest and weight to their softmax; returns ln sum exp(score - top).
template <class T>
inline double softmax_of_largest(candidates<T>& list, int64_t k, double* weight, T top) {
  if (k < list.count) keep_largest(list, k);
  double total = 0;
  for (int64_t i = 0; i < list.count; ++i) {
    weight[i] = __builtin_exp2(static_cast<double>(list.value[i]) - static_cast<double>(top));
    total += weight[i];
  }
  for (int64_t i = 0; i < list.count; ++i) weight[i] /= total;
  return __builtin_log(total);
}

/// A row at its end: the keys that have a weight, none for a NaN row.
template <class T>
struct weighed_row {
  const candidates<T>& list;
  const double* weight;
  double top;      ///< largest score
  bool nan;        ///< a visible score is NaN or infinite
  double log_sum;  ///< top-k: ln sum exp(score - top)
};

/// Hands the support of row r and its largest score to the taker, if there is one, else reports its
/// statistics. The entropy takes a logarithm for each key: it is 0 without wanted_moments.
template <class T>
inline void report_row(const attend_block& b, const weighed_row<T>& row, int r) {
  const auto& [list, weight, top, nan, log_sum] = row;
  const double missing = nan ? __builtin_nan("") : 0, nats = nats_of(b);
  const bool empty = list.count == 0, spread = b.wanted & wanted_moments;
  row_report& out = *b.report;
  out.top[r] = nan ? missing : empty ? -limits<double>::infinity : top * nats;
  out.lse[r] = out.top[r] + log_sum;
  if (b.support) return b.support->take(b.support->state, r, list.key, weight, list.count);
  double first = 0, second = 0, squares = 0, entropy = 0, largest = 0;
  int64_t argmax = -1;
  for (int64_t i = 0; i < list.count; ++i) {
    const double p = weight[i], t = static_cast<double>(list.value[i]), below = (t - top) * nats;
    const int64_t key = static_cast<int64_t>(list.key[i]) + b.key_begin;
    first += p * below;
    second += p * below * below;
    squares += p * p;
    if (spread && p > 0) entropy -= p * __builtin_log(p);
    if (p > largest) largest = p;
    if (t == top && (argmax < 0 || key < argmax)) argmax = key;
  }
  const double variance = second - first * first;
  out.argmax[r] = argmax;
  out.support[r] = list.count;
  out.mean[r] = empty ? missing : top * nats + first;
  out.variance[r] = variance > 0 ? variance : missing;
  out.entropy[r] = entropy > 0 ? entropy : missing;
  out.concentration[r] = empty ? missing : squares;
  out.max_weight[r] = empty ? missing : largest;
}

/// Weighted values of one row. A long sum is blocked: recent is added to total now and then.
template <class T>
struct row_sum {
  T *recent, *total, *copy;
};

/// total[c .. c + M * width) += sum of the weighted values of the candidates [begin, end), read in
/// place: the sums stay in registers.
template <class T, int M>
inline void add_columns(const attend_block& b, const candidates<T>& list, const double* weight,
                        int64_t begin, int64_t end, int64_t c, T* total) {
  constexpr int w = width<T>;
  const T* values = static_cast<const T*>(b.value.data) + b.key_begin * b.value.layout.row + c;
  vec<T> acc[M];
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) acc[m] = broadcast(T(0));
  for (int64_t i = begin; i < end; ++i) {
    const T* v = values + static_cast<ptrdiff_t>(list.key[i]) * b.value.layout.row;
    const vec<T> p = broadcast(static_cast<T>(weight[i]));
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) acc[m] = fma(load(v + m * w), p, acc[m]);
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) store(total + c + m * w, load(total + c + m * w) + acc[m]);
}

/// total += the weighted values of the candidates [begin, end), for the columns from `first` on.
template <class T>
inline void add_one_by_one(const attend_block& b, const candidates<T>& list, const double* weight,
                           int64_t begin, int64_t end, int64_t first, const row_sum<T>& sum) {
  const int64_t columns = b.value_dim;
  for (int64_t c = first; c < columns; ++c) sum.recent[c] = T(0);
  for (int64_t i = begin; i < end && first < columns; ++i) {
    const T* v = view_rows(b.value, b.key_begin + list.key[i], 1, columns, sum.copy).data;
    const T p = static_cast<T>(weight[i]);
    int64_t c = first;
    for (; c + width<T> <= columns; c += width<T>)
      store(sum.recent + c, fma(load(v + c), broadcast(p), load(sum.recent + c)));
    for (; c < columns; ++c) sum.recent[c] += p * v[c];
  }
  for (int64_t c = first; c < columns; ++c) sum.total[c] += sum.recent[c];
}

template <class T>
inline void add_values_of(const attend_block& b, const candidates<T>& list, const double* weight,
                          const row_sum<T>& sum) {
  constexpr int w = width<T>, keys_at_once = 64;
  const int64_t whole = is_direct<T>(b.value.layout) ? b.value_dim / w * w : 0;
  for (int64_t c = 0; c < b.value_dim; ++c) sum.total[c] = T(0);
  for (int64_t i = 0; i < list.count; i += keys_at_once) {
    const int64_t end = i + keys_at_once < list.count ? i + keys_at_once : list.count;
    int64_t c = 0;
    for (; c + 4 * w <= whole; c += 4 * w) add_columns<T, 4>(b, list, weight, i, end, c, sum.total);
    for (; c < whole; c += w) add_columns<T, 1>(b, list, weight, i, end, c, sum.total);
    add_one_by_one(b, list, weight, i, end, whole, sum);
  }
}

}  // namespace
