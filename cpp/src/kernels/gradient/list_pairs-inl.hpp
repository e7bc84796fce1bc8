// SPDX-License-Identifier: BSD-3-Clause
//
// Gradients of rows with lists, pair by pair: gradients of the scores, and for few pairs also those
// of queries, keys and values.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/gradient/block.hpp"
#include "kernels/gradient/lists-inl.hpp"
#include "kernels/gradient/pairs-inl.hpp"
#include "kernels/gradient/queries-inl.hpp"
#include "kernels/gradient/rows-inl.hpp"
#include "kernels/gradient/workspace-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"

namespace {

using attnscale::normalizer;

/// Dot product sum_c a[c] * b[c].
template <class T>
inline T dot_of_rows(const T* a, const T* b, int64_t columns) {
  constexpr int w = width<T>;
  vec<T> even = broadcast(T(0)), odd = even;
  int64_t c = 0;
  for (; c + 2 * w <= columns; c += 2 * w) {
    even = fma(load(a + c), load(b + c), even);
    odd = fma(load(a + c + w), load(b + c + w), odd);
  }
  if (c + w <= columns) even = fma(load(a + c), load(b + c), even), c += w;
  T lanes[w];
  store(lanes, even + odd);
  for (int half = w / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  for (; c < columns; ++c) lanes[0] += a[c] * b[c];
  return lanes[0];
}

/// Gradients of the weights of a row: grad . value for each listed key.
template <class T>
inline void dot_with_values(const gradient_block& b, const uint32_t* key, int64_t count,
                            const T* grad, T* copy, T* out) {
  for (int64_t i = 0; i < count; ++i)
    out[i] = dot_of_rows(grad, view_rows(b.value, key[i], 1, b.value_dim, copy).data, b.value_dim);
}

/// Slope u in the Jacobian diag(u) - u u^T / sum u: p^(2 - alpha).
inline double slope_of(double p, double alpha) {
  if (alpha == 2) return 1;
  if (alpha == 1) return p;
  return alpha == 1.5 ? __builtin_sqrt(p) : __builtin_pow(p, 2 - alpha);
}
inline vec<double> slope_of(vec<double> p, double alpha) {
  if (alpha == 2) return broadcast(1.0);
  if (alpha == 1) return p;
  if (alpha == 1.5) return xsimd::sqrt(p);
  double lanes[width<double>];
  store(lanes, p);
  for (double& lane : lanes) lane = __builtin_pow(lane, 2 - alpha);
  return load(lanes);
}

/// Mean of x - from, weighted by the slopes u of p, over at least one key.
template <class T>
inline double mean_by_slope(const double* p, double alpha, int64_t count, double from, const T* x) {
  constexpr int w = width<double>;
  vec<double> totals = broadcast(0.0), sums = totals;
  int64_t i = 0;
  for (; i + w <= count; i += w) {
    const vec<double> u = slope_of(load(p + i), alpha);
    totals = totals + u;
    sums = fma(u, load_widened(x + i) - broadcast(from), sums);
  }
  double total[w], sum[w];
  store(total, totals), store(sum, sums);
  for (int lane = 1; lane < w; ++lane) total[0] += total[lane], sum[0] += sum[lane];
  for (; i < count; ++i) {
    const double u = slope_of(p[i], alpha);
    total[0] += u;
    sum[0] += u * (static_cast<double>(x[i]) - from);
  }
  return sum[0] / total[0];
}

/// Gradient by alpha from those by the weights p, from which `from + mean` is subtracted: with h =
/// -p ln p that of a weight is (p - u / sum u) / (alpha - 1)^2 + (h - u sum h / sum u) / (alpha -
/// 1) (Correia, Niculae & Martins 2019, arXiv 1909.00015, with the other sign of h).
template <class T>
inline double gradient_of_alpha(const double* p, double alpha, int64_t count, double from,
                                double mean, const T* x) {
  double of_weight = 0, of_entropy = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double above = p[i] * (static_cast<double>(x[i]) - from - mean);
    of_weight += above;
    of_entropy -= __builtin_log(p[i]) * above;
  }
  const double step = 1 / (alpha - 1);
  return step * (step * of_weight + of_entropy);
}

/// x <- gradients of the scores of a row from those of its weights: u (x - mean of x weighted by
/// u), where u is the weight itself for top-k. Returns the gradient by alpha if wanted. For alpha >
/// 2 the smallest weight has by far the largest u: x is taken relative to it, so that the mean
/// keeps the digits of the others.
template <class T>
inline double differentiate_list(const gradient_block& b, const double* p, int64_t count, T* x) {
  if (count == 0) return 0;
  const double alpha = b.alpha;
  int64_t least = 0;
  for (int64_t i = 1; i < count && alpha > 2; ++i)
    if (p[i] < p[least]) least = i;
  const auto from = static_cast<double>(x[least]);
  const double mean = mean_by_slope(p, alpha, count, from, x);
  const double of_alpha = b.d_alpha ? gradient_of_alpha(p, alpha, count, from, mean, x) : 0;
  constexpr int w = width<double>;
  int64_t i = 0;
  for (; i + w <= count; i += w)
    store_narrowed(x + i, slope_of(load(p + i), alpha) *
                              (load_widened(x + i) - broadcast(from) - broadcast(mean)));
  for (; i < count; ++i)
    x[i] = static_cast<T>(slope_of(p[i], alpha) * (static_cast<double>(x[i]) - from - mean));
  return of_alpha;
}

/// out[c ... c + M * width) += sum over i of weight(i) times the row that begins at row(i).
template <class T, int M, class Row, class Weight>
ATTNSCALE_INLINE void add_rows_at(int64_t begin, int64_t end, int64_t c, Row&& row, Weight&& weight,
                                  T* out) {
  constexpr int w = width<T>;
  vec<T> acc[M];
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) acc[m] = broadcast(T(0));
  for (int64_t i = begin; i < end; ++i) {
    const T* x = row(i) + c;
    const vec<T> p = broadcast(weight(i));
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) acc[m] = fma(load(x + m * w), p, acc[m]);
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) store(out + c + m * w, load(out + c + m * w) + acc[m]);
}

/// Weighted sum of rows, for all columns.
template <class T, class Row, class Weight>
inline void add_weighted_rows(int64_t begin, int64_t end, Row&& row, Weight&& weight,
                              int64_t columns, T* out) {
  constexpr int w = width<T>;
  int64_t c = 0;
  for (; c + 4 * w <= columns; c += 4 * w) add_rows_at<T, 4>(begin, end, c, row, weight, out);
  for (; c + w <= columns; c += w) add_rows_at<T, 1>(begin, end, c, row, weight, out);
  for (; c < columns; ++c) {
    T sum = T(0);
    for (int64_t i = begin; i < end; ++i) sum += weight(i) * row(i)[c];
    out[c] += sum;
  }
}

/// Gradients of the queries of a panel from their keys, without their scale. Long sums are blocked.
template <class T>
inline void add_keys_of_lists(const gradient_block& b, const gradient_lists<T>& ws, int lane,
                              int lanes, T* panel) {
  constexpr int64_t keys_at_once = 64;
  const auto row = [&](int64_t i) {
    return view_rows(b.key, b.lists.key[i], 1, b.head_dim, ws.copy).data;
  };
  const auto weight = [&](int64_t i) { return ws.gradient[i]; };
  for (int r = 0; r < lanes && lane + r < b.rows; ++r) {
    const int64_t begin = b.lists.begin[lane + r], end = begin + b.lists.count[lane + r];
    for (int64_t c = 0; c < b.head_dim; ++c) ws.sum[c] = T(0);
    for (int64_t i = begin; i < end; i += keys_at_once)
      add_weighted_rows<T>(i, i + keys_at_once < end ? i + keys_at_once : end, row, weight,
                           b.head_dim, ws.sum);
    for (int64_t c = 0; c < b.head_dim; ++c) panel[c * lanes + r] = ws.sum[c];
  }
}

/// Gradients of the keys and values of a tile from the queries, in the order of the queries.
template <class T>
inline void add_pairs_of_keys(const gradient_block& b, const gradient_workspace<T>& ws,
                              const key_tile& at) {
  const query_pair<T>* const pair = ws.lists.pair;
  const auto row = [=](const dense_rows<T>& of) {
    return [=](int64_t i) { return of.rows + pair[i].row * of.stride; };
  };
  const auto weight = [=](int64_t i) { return pair[i].weight; };
  const auto gradient = [=](int64_t i) { return pair[i].gradient; };
  for (int64_t j = at.key; j < at.key + at.keys; ++j) {
    const int64_t begin = j > 0 ? ws.lists.pair_end[j - 1] : 0, end = ws.lists.pair_end[j];
    if (begin == end) continue;
    if (b.grad_output.data)
      add_weighted_rows<T>(begin, end, row(ws.grad_output), weight, b.value_dim,
                           rows_at<T>(b.d_value, j));
    add_weighted_rows<T>(begin, end, row(ws.query), gradient, b.head_dim, rows_at<T>(b.d_key, j));
  }
}

/// Gradients of the weights of all rows with many pairs: products of whole tiles, from which each
/// row takes its keys. For few pairs use dot_with_values().
template <class T>
inline void multiply_lists_with_values(const gradient_block& b, gradient_workspace<T>& ws,
                                       tile_walk& walk) {
  for (int r = 0; r < b.rows; ++r) ws.lists.next[r] = b.lists.begin[r];
  walk.for_tiles([&](const key_tile& at) {
    const row_view<T> v = view_rows(b.value, at.key, at.keys, b.value_dim, ws.value_copy);
    for_panels<T>(b.rows, [&](query_panel panel) {
      const int lane = panel.lane, lanes = panel.vectors * width<T>;
      multiply_values(b, ws, panel, {0, at.keys, 0, panel.vectors}, v);
      const T* const products = ws.gradients + lane * ws.panel_keys;
      for (int r = lane; r < lane + lanes && r < b.rows; ++r) {
        int64_t& i = ws.lists.next[r];
        const int64_t end = b.lists.begin[r] + b.lists.count[r];
        for (; i < end && b.lists.key[i] < at.key + at.keys; ++i)
          ws.lists.gradient[i] = products[(b.lists.key[i] - at.key) * lanes + r - lane];
      }
    });
  });
}

/// Gradients of the scores of all pairs, and marks of NaN rows; false if a row is NaN.
template <class T>
inline bool differentiate_lists(const gradient_block& b, gradient_workspace<T>& ws,
                                tile_walk& walk) {
  const bool has_value = b.grad_output.data != nullptr, one_by_one = has_few_pairs(b);
  bool clean = true;
  if (has_value && !one_by_one) multiply_lists_with_values(b, ws, walk);
  for (int r = 0; r < b.rows && !walk.poll(); ++r) {
    const int64_t begin = b.lists.begin[r], count = b.lists.count[r];
    T* const x = ws.lists.gradient + begin;
    ws.lists.next[r] = begin;
    for (int64_t i = 0; i < count && !has_value; ++i) x[i] = T(0);
    if (has_value && one_by_one)
      dot_with_values(b, b.lists.key + begin, count,
                      ws.grad_output.rows + r * ws.grad_output.stride, ws.lists.copy, x);
    const double nan = mark_row(b, ws, r);
    const double of_alpha = differentiate_list(b, b.lists.weight + begin, count, x);
    if (b.d_alpha) b.d_alpha[r] = of_alpha + nan;
    clean = clean && nan == 0;
  }
  return clean;
}

}  // namespace
