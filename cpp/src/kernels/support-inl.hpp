// SPDX-License-Identifier: BSD-3-Clause
//
// One row from the list of its candidates to weights, statistics and the sum of values.
#pragma once

namespace {

using attnscale::detail::row_report;

constexpr double ln2 = 0.69314718055994530942;

/// The list shrinks to its k largest and weight to their softmax; returns ln sum exp(score - top).
template <class T>
inline double softmax_of_largest(candidates<T>& list, double k, double* weight, T top) {
  if (k < static_cast<double>(list.count)) keep_largest(list, static_cast<int64_t>(k));
  double total = 0;
  for (int64_t i = 0; i < list.count; ++i) {
    weight[i] = __builtin_exp2(static_cast<double>(list.value[i]) - static_cast<double>(top));
    total += weight[i];
  }
  for (int64_t i = 0; i < list.count; ++i) weight[i] /= total;
  return __builtin_log(total);
}

/// Statistics of row r; `top` is its largest score in base 2.
template <class T>
inline void report_row(const candidates<T>& list, const double* weight, double top, bool nan,
                       double log_sum, int64_t first_key, int r, row_report& out) {
  const double missing = nan ? __builtin_nan("") : 0;
  const bool empty = list.count == 0;
  out.top[r] = nan ? missing : empty ? -limits<double>::infinity : top * ln2;
  out.lse[r] = out.top[r] + log_sum;
  double first = 0, second = 0, squares = 0, entropy = 0, largest = 0;
  int64_t argmax = -1;
  for (int64_t i = 0; i < list.count; ++i) {
    const double p = weight[i], t = static_cast<double>(list.value[i]), below = (t - top) * ln2;
    const int64_t key = static_cast<int64_t>(list.key[i]) + first_key;
    first += p * below;
    second += p * below * below;
    squares += p * p;
    if (p > 0) entropy -= p * __builtin_log(p);
    if (p > largest) largest = p;
    if (t == top && (argmax < 0 || key < argmax)) argmax = key;
  }
  const double variance = second - first * first;
  out.argmax[r] = argmax;
  out.support[r] = list.count;
  out.mean[r] = empty ? missing : top * ln2 + first;
  out.variance[r] = variance > 0 ? variance : missing;
  out.entropy[r] = entropy > 0 ? entropy : missing;
  out.concentration[r] = empty ? missing : squares;
  out.max_weight[r] = empty ? missing : largest;
}

/// The weighted values of one row. A long sum is blocked: near is added to far now and then.
template <class T>
struct row_sum {
  T *near, *far, *copy;
};

template <class T>
inline void add_values_of(const attend_block& b, const candidates<T>& list, const double* weight,
                          const row_sum<T>& sum) {
  constexpr int w = width<T>, keys_per_carry = 64;
  const int64_t columns = b.value_dim, whole = columns / w * w;
  for (int64_t c = 0; c < columns; ++c) sum.near[c] = sum.far[c] = T(0);
  for (int64_t i = 0; i < list.count; ++i) {
    const T* v = view_rows(b.value, b.key_begin + list.key[i], 1, columns, sum.copy).data;
    const T p = static_cast<T>(weight[i]);
    int64_t c = 0;
    for (; c < whole; c += w)
      store(sum.near + c, fma(load(v + c), broadcast(p), load(sum.near + c)));
    for (; c < columns; ++c) sum.near[c] += p * v[c];
    if (i % keys_per_carry != keys_per_carry - 1 && i + 1 < list.count) continue;
    for (c = 0; c < columns; ++c) {
      sum.far[c] += sum.near[c];
      sum.near[c] = T(0);
    }
  }
}

}  // namespace
