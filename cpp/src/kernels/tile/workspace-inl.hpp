// SPDX-License-Identifier: BSD-3-Clause
//
// Tile shapes, scratch memory and the loop over panels, for attend and curve.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/types.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/product-inl.hpp"
#include "kernels/tile/rows-inl.hpp"

namespace {

using attnscale::detail::max_block_rows;
using attnscale::detail::score_block;

/// Keys per tile; a multiple of the products' 6 rows. 192 x 64 floats of scores are 48 KiB: they
/// stream through L2, and the products are long enough to hide their ends. If a panel has few
/// lanes, each key is read again for many panels: 96 rows of 64 floats stay in L1, and do not
/// depend on the position of K and V in L2 (measured on Zen 4 at level avx2, 8 x 3072 x 64, two
/// threads: 128 to 165 GFLOP/s with 192 keys, 186 with 96).
constexpr int tile_keys = panel_vectors >= 4 ? 192 : 96;

/// Maximum size of the last tile: a few more keys in it cost less than another tile.
constexpr int max_tile_keys = tile_keys * 5 / 4;

/// Keys of the next tile when `left` are left.
inline int next_tile(int64_t left) {
  return left <= max_tile_keys ? static_cast<int>(left) : tile_keys;
}

/// Queries of a full block: 64 lanes of float, 32 of double, four vectors of AVX-512. The same tile
/// shape at every level.
template <class T>
constexpr int block_rows = static_cast<int>(64 * sizeof(float) / sizeof(T));

/// Hands out 64-byte aligned arrays from one scratch area; with null it only counts.
struct arena {
  char* next;
  size_t used = 0;
  template <class T>
  T* take(int64_t elements) {
    T* p = next ? reinterpret_cast<T*>(next + used) : nullptr;
    used += (static_cast<size_t>(elements) * sizeof(T) + 63) / 64 * 64;
    return p;
  }
};

/// Bytes of scratch that a workspace needs for a block.
template <class Workspace, class Block>
size_t scratch_of(const Block& block) {
  arena a{nullptr};
  Workspace unused(block, a);
  return a.used;
}

/// Calls f(query_panel) for each panel of `rows` queries.
template <class T, class F>
ATTNSCALE_INLINE void for_panels(int rows, F&& f) {
  constexpr int lanes = panel_vectors * width<T>;
  for (int lane = 0; lane < rows; lane += lanes) {
    const int vectors = (rows - lane + width<T> - 1) / width<T>;
    f(query_panel{lane, vectors < panel_vectors ? vectors : panel_vectors});
  }
}

/// Packs the queries of one panel into lanes.
template <class T>
inline void pack_queries(const score_block& block, query_panel panel, T* copy, T* out) {
  constexpr int w = width<T>;
  for (int n = 0; n < panel.vectors; ++n) {
    const int row = panel.lane + n * w;
    pack_lanes(block.query, row, block.rows - row, block.head_dim, copy, out + n * w,
               panel.vectors * w);
  }
}

}  // namespace
