// SPDX-License-Identifier: BSD-3-Clause
//
// Gradients of single scores besides query and key: of an additive mask, and of tables of the
// distance of query and key.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/gradient/block.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::detail::gradient_place;

/// Calls f(row of the block, first key of the tile, keys, their values) for each row of a panel, at
/// the keys that its vector may see. copy: scratch of width * max_tile_keys elements.
template <class T, class F>
inline void for_rows_of_panel(const T* panel, const vector_keys& seen, int lane, int rows, T* copy,
                              F&& f) {
  constexpr int w = width<T>;
  for (int n = 0; n < seen.vectors; ++n) {
    const int first = lane + n * w, keys = seen.end[n] - seen.begin[n];
    const int count = rows - first < w ? rows - first : w;
    if (keys <= 0 || count <= 0) continue;
    lanes_to_rows(panel + (seen.begin[n] * seen.vectors + n) * w, seen.vectors * w, keys,
                  broadcast(T(1)), count, copy, max_tile_keys);
    for (int r = 0; r < count; ++r) f(first + r, seen.begin[n], keys, copy + r * max_tile_keys);
  }
}

/// Row `first` of an array of T.
template <class T>
inline T* rows_at(const gradient_place& to, int64_t first) {
  return static_cast<T*>(to.data) + first * to.row;
}

/// out[i * step] += x[i].
template <class T>
inline void add_row(const T* x, int count, T* out, ptrdiff_t step) {
  if (step == 1)
    for (int i = 0; i < count; ++i) out[i] += x[i];
  else
    for (int i = 0; i < count; ++i) out[i * step] += x[i];
}

/// Sums of a block by distance: entry (row, key) is that of distance key - row.
template <class T>
struct distance_sums {
  T* sums = nullptr;
  int rows = 0;
  int64_t count = 0;

  void take(int64_t keys, int64_t block_rows, arena& a) { sums = a.take<T>(keys + block_rows); }

  void start(int64_t keys, int block_rows) {
    rows = block_rows;
    count = keys + block_rows - 1;
    for (int64_t i = 0; i < count; ++i) sums[i] = T(0);
  }
  T* at(int row, int64_t key) const { return sums + key - row + rows - 1; }

  /// Adds the sums to a table, whose entry of row 0 and key 0 is `out`.
  void add_to(T* out) const {
    for (int64_t i = 0; i < count; ++i) out[i - (rows - 1)] += sums[i];
  }
};

}  // namespace
