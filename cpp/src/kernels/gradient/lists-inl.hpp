// SPDX-License-Identifier: BSD-3-Clause
//
// Rows of entmax and top-k, whose support and weights the forward pass lists: only pairs of a query
// and a key of its support are processed.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/gradient/block.hpp"
#include "kernels/gradient/weights-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/score-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::normalizer;
using attnscale::detail::gradient_block;
using attnscale::detail::max_gradient_rows;
using attnscale::detail::row_lists;

inline bool has_lists(const gradient_block& b) { return b.lists.begin != nullptr; }
inline bool has_panels(const gradient_block& b) { return b.lists.panels != nullptr; }

/// Number of pairs of all rows.
inline int64_t count_pairs(const gradient_block& b) {
  int64_t pairs = 0;
  for (int r = 0; has_lists(b) && r < b.rows; ++r) pairs += b.lists.count[r];
  return pairs;
}

/// Whether pairs one by one are faster than products of whole tiles.
inline bool has_few_pairs(const gradient_block& b) {
  return !has_panels(b) && 4 * count_pairs(b) <= b.rows * (b.key_end - b.key_begin);
}

/// A pair, stored by its key.
template <class T>
struct query_pair {
  T weight, gradient;  ///< by the score
  uint32_t row;
};

template <class T>
struct gradient_lists {
  T* gradient = nullptr;          ///< by the scores, indexed like row_lists::weight
  query_pair<T>* pair = nullptr;  ///< sorted by key
  uint32_t* pair_end = nullptr;   ///< per key
  T *copy = nullptr, *sum = nullptr;
  int64_t next[max_gradient_rows];  ///< per row: its first pair beyond the tiles so far
  T* panel_gradient = nullptr;      ///< by the weights, laid out like row_lists::panels
  double mean[max_gradient_rows];   ///< per row of the panels

  gradient_lists(const gradient_block& b, arena& a) {
    if (!has_lists(b)) return;
    if (has_panels(b)) {
      const int64_t rows = (b.rows + width<T> - 1) / width<T> * width<T>;
      panel_gradient = a.take<T>(rows * (b.key_end - b.key_begin));
      return;
    }
    const int64_t columns = b.head_dim < b.value_dim ? b.value_dim : b.head_dim;
    gradient = a.take<T>(b.lists.size);
    copy = a.take<T>(columns + width<T>);
    sum = a.take<T>(b.head_dim + width<T>);
    if (!has_few_pairs(b)) return;
    pair = a.take<query_pair<T>>(b.lists.size);
    pair_end = a.take<uint32_t>(b.key_end - b.key_begin + 1);
  }
};

/// Sorts the pairs of all rows by key.
template <class T>
inline void sort_by_key(const gradient_block& b, const gradient_lists<T>& ws) {
  const int64_t keys = b.key_end - b.key_begin;
  const row_lists& lists = b.lists;
  for (int64_t j = 0; j <= keys; ++j) ws.pair_end[j] = 0;
  for (int r = 0; r < b.rows; ++r)
    for (int64_t i = lists.begin[r]; i < lists.begin[r] + lists.count[r]; ++i)
      ++ws.pair_end[lists.key[i] + 1];
  // The begin of each key, which moves to its end.
  for (int64_t j = 0; j < keys; ++j) ws.pair_end[j + 1] += ws.pair_end[j];
  for (int r = 0; r < b.rows; ++r)
    for (int64_t i = lists.begin[r]; i < lists.begin[r] + lists.count[r]; ++i)
      ws.pair[ws.pair_end[lists.key[i]]++] = {static_cast<T>(lists.weight[i]), ws.gradient[i],
                                              static_cast<uint32_t>(r)};
}

/// Weights and gradients of the scores of a panel over a tile; NaN at all keys of NaN rows (see
/// differentiate_lists). Returns false if all are 0. Tiles have to come in order.
template <class T>
inline bool fill_from_lists(const gradient_block& b, gradient_lists<T>& ws,
                            const gradient_lanes<T>& row, query_panel panel, const key_tile& at,
                            T* weights, T* gradients) {
  constexpr int w = width<T>;
  const int lane = panel.lane, lanes = panel.vectors * w;
  bool some = false;
  for (int n = 0; n < panel.vectors; ++n) {
    const vec<T> zero = load(row.factor + n * w) * broadcast(T(0));
    const vec<T> zero_gradient = load(row.constant + n * w) + zero;
    some = some || !xsimd::all(zero_gradient == zero_gradient);
    for (int j = 0; j < at.keys; ++j) {
      store(weights + j * lanes + n * w, zero);
      store(gradients + j * lanes + n * w, zero_gradient);
    }
  }
  for (int r = 0; r < lanes && lane + r < b.rows; ++r) {
    const int64_t end = b.lists.begin[lane + r] + b.lists.count[lane + r];
    int64_t& i = ws.next[lane + r];
    for (; i < end && b.lists.key[i] < at.key + at.keys; ++i) {
      const int64_t to = (b.lists.key[i] - at.key) * lanes + r;
      weights[to] += static_cast<T>(b.lists.weight[i]);
      gradients[to] += ws.gradient[i];
      some = true;
    }
  }
  return some;
}

/// Derivatives of the scores of a biased tile by scaled products, unless they are 1.
template <class T>
inline void find_slopes(const gradient_lanes<T>& row, const vector_keys& seen,
                        const score_form& form, const T* bias, const T* raw, T* slopes) {
  constexpr int w = width<T>;
  for (int n = 0; n < seen.vectors && slopes; ++n) {
    const score_rule<T> score(load(row.scale + n * w), form);
    for (int j = seen.begin[n]; j < seen.end[n]; ++j) {
      const int at = (j * seen.vectors + n) * w;
      store(slopes + at, score.slope(load(raw + at), load(bias + at)));
    }
  }
}

/// Sets hidden keys to 0, also where a row is NaN.
template <class T>
inline void hide(const vector_keys& seen, const T* bias, T* weights, T* gradients) {
  constexpr int w = width<T>;
  const vec<T> masked = broadcast(masked_score<T>), zero = broadcast(T(0));
  for (int n = 0; n < seen.vectors; ++n)
    for (int j = seen.begin[n]; j < seen.end[n]; ++j) {
      const int at = (j * seen.vectors + n) * w;
      const vec_mask<T> hidden = load(bias + at) == masked;
      store(weights + at, xsimd::select(hidden, zero, load(weights + at)));
      store(gradients + at, xsimd::select(hidden, zero, load(gradients + at)));
    }
}

}  // namespace
