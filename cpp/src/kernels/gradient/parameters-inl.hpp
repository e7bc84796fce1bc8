// SPDX-License-Identifier: BSD-3-Clause
//
// Terms of score gradients besides those of weights, and gradients of additive masks and distance
// tables, for one panel of a biased tile.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/gradient/block.hpp"
#include "kernels/gradient/pairs-inl.hpp"
#include "kernels/gradient/workspace-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"

namespace {

/// Adds the gradient by the statistics of the largest score at its key.
template <class T>
inline void add_at_top(const gradient_block& b, query_panel panel, const key_tile& at, T* ds) {
  const int lane = panel.lane, lanes = panel.vectors * width<T>;
  for (int r = 0; r < lanes && lane + r < b.rows; ++r) {
    const int64_t j = b.given->top[lane + r] - at.key;
    if (j >= 0 && j < at.keys) ds[j * lanes + r] += static_cast<T>(b.given->at_top[lane + r]);
  }
}

/// Adds gradients of scores, or numbers that scale with them, by the distance of query and key.
template <class T>
inline void add_by_distance(const gradient_block& b, const gradient_workspace<T>& ws, int lane,
                            const key_tile& at, const vector_keys& seen, const T* x,
                            const distance_sums<T>& sums) {
  for_rows_of_panel(x, seen, lane, b.rows, ws.tile.rows,
                    [&](int row, int key, int keys, const T* values) {
                      add_row(values, keys, sums.at(row, at.key + key), 1);
                    });
}

/// Whether all keys share one entry of the mask: all tiles then add to it.
inline bool shares_mask(const gradient_block& b) {
  return b.d_attn_mask.data && b.d_attn_mask.column == 0;
}

template <class T>
inline void add_to_mask(const gradient_block& b, const gradient_workspace<T>& ws, int lane,
                        const key_tile& at, const vector_keys& seen, const T* ds) {
  for_rows_of_panel(
      ds, seen, lane, b.rows, ws.tile.rows, [&](int row, int key, int keys, const T* values) {
        if (shares_mask(b)) return add_row(values, keys, ws.mask_sums + row, 0);
        T* const out = rows_at<T>(b.d_attn_mask, row);
        add_row(values, keys, out + (at.key + key) * b.d_attn_mask.column, b.d_attn_mask.column);
      });
}

/// Gradient of distance_scale: that of the scaled product times scale and product. Overwrites
/// ws.plain.
template <class T>
inline void add_to_distance_scale(const gradient_block& b, const gradient_workspace<T>& ws,
                                  int lane, const key_tile& at, const vector_keys& seen,
                                  const T* ds) {
  constexpr int w = width<T>;
  const vec<T> zero = broadcast(T(0)), masked = broadcast(masked_score<T>);
  for (int n = 0; n < seen.vectors; ++n) {
    const vec<T> scale = load(ws.nat_scale + lane + n * w);
    for (int j = seen.begin[n]; j < seen.end[n]; ++j) {
      const int i = (j * seen.vectors + n) * w;
      const vec_mask<T> hidden = load(ws.tile.bias + i) == masked;
      const vec<T> x = load(ds + i) * scale * load(ws.plain + i);
      store(ws.plain + i, xsimd::select(hidden, zero, x));
    }
  }
  add_by_distance(b, ws, lane, at, seen, ws.plain, ws.distance_scale);
}

}  // namespace
