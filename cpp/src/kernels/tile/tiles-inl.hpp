// SPDX-License-Identifier: BSD-3-Clause
//
// Code shared by every loop over q . k: the tiles of keys that a block of queries may see, and the
// products of one tile with one panel of queries.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/simd.hpp"
#include "kernels/stop_signal.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/distance-inl.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/product-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/score-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::detail::score_block;
using attnscale::detail::stop_signal;

/// Consecutive keys that are processed together.
struct key_tile {
  int64_t key;
  int keys;
  bool masked;  ///< some row does not see all of its keys, or scores need a bias
};

/// Loop over the visible keys of a block, tile by tile, until stopped.
class tile_walk {
 public:
  explicit tile_walk(const score_block& block) : visible(block), stop_(block.stop) {}

  /// Calls f(tile) for every tile, in the order of the keys. most: keys per tile, 0 for those of
  /// the panels.
  template <class F>
  ATTNSCALE_INLINE void for_tiles(F&& f, int most = 0) {
    ended_ = false;
    // Polling reads the clock: 5 % of the time of a single query, if done for each of its short
    // tiles.
    int unpolled = max_tile_keys;
    for (int i = 0; i < visible.count; ++i)
      for (int64_t key = visible.range[i].begin; key < visible.range[i].end;) {
        if (unpolled >= max_tile_keys / 2) {
          unpolled = 0;
          if (poll()) return;
        }
        const int64_t left = visible.range[i].end - key;
        const int keys = most == 0 ? next_tile(left) : left < most ? static_cast<int>(left) : most;
        f(key_tile{key, keys, visible.range[i].masked});
        if (ended_) return;
        key += keys;
        unpolled += keys;
      }
  }

  /// Makes the current tile the last one.
  void end() { ended_ = true; }

  /// Whether the caller wants to stop; then nothing has to be finished.
  bool poll() { return stopped = stopped || stop_->poll(stop_->state); }

  const key_ranges visible;
  bool stopped = false;

 private:
  const stop_signal* stop_;
  bool ended_ = false;
};

/// Scratch memory for products of tiles: packed queries, one tile of scores with its bias and table
/// panels, and copies of rows whose layout a product cannot read.
template <class T>
struct tile_workspace {
  T *query, *scores, *bias, *table = nullptr, *key_copy, *rows;

  /// row_length: additional elements of a row of `rows` beyond those of keys and queries; queries:
  /// number in a full block; spare: keys beyond a tile for which a product may write scores.
  tile_workspace(const score_block& b, int64_t row_length, arena& a,
                 int64_t queries = block_rows<T>, int64_t spare = 0) {
    constexpr int64_t lanes = panel_vectors * width<T>, panel = max_tile_keys * lanes;
    if (row_length < b.head_dim) row_length = b.head_dim;
    if (row_length < max_tile_keys) row_length = max_tile_keys;
    query = a.take<T>(b.head_dim * queries);
    scores = a.take<T>(panel + spare * lanes);
    bias = a.take<T>(panel);
    if (has_distance_tables(b)) table = a.take<T>(panel);
    key_copy = a.take<T>(is_direct<T>(b.key.layout) ? 0 : max_tile_keys * b.head_dim);
    rows = a.take<T>(width<T> * row_length);
  }

  row_view<T> keys(const score_block& b, const key_tile& tile) const {
    return view_rows(b.key, tile.key, tile.keys, b.head_dim, key_copy);
  }
};

/// Products of one panel of queries with a tile: raw products of the keys that each vector may see.
/// Nothing else is computed, and nothing else may be read.
template <class T>
struct tile_products {
  vector_keys seen;
  bool biased;  ///< a bias panel marks the visible keys of each row; else each row sees all
  int n_strips;
  strip strips[2 * panel_vectors];  ///< for a biased tile
  /// Extremes per lane; for a biased tile: see find_extremes.
  vec<T> most[panel_vectors], least[panel_vectors];
};

/// Keys of a tile that each vector of a panel may see by interval.
template <class T>
inline vector_keys keys_in_tile(const score_block& b, const key_tile& tile, query_panel panel) {
  if (tile.masked) return keys_of_vectors<T>(b, panel, tile.key, tile.keys);
  vector_keys all;
  all.vectors = panel.vectors;
  for (int n = 0; n < panel.vectors; ++n) all.begin[n] = 0, all.end[n] = tile.keys;
  return all;
}

/// Visible keys of a panel in a tile, with its bias and strips if it is biased. False if it sees
/// none.
template <class T>
inline bool look_at_tile(const score_block& b, const tile_workspace<T>& ws, const key_tile& tile,
                         query_panel panel, tile_products<T>& out) {
  out.biased = tile.masked || changes_scores(b.form);
  out.seen = keys_in_tile<T>(b, tile, panel);
  if (!out.biased) return true;
  if (out.seen.nothing() || !fill_bias(b, panel, tile.key, tile.keys, out.seen, ws.rows, ws.bias))
    return false;
  out.n_strips = cut_strips(out.seen, out.strips);
  return true;
}

/// Raw products of a strip's keys with its vectors, and their extremes per lane.
template <class T>
inline void multiply_strip(const strip& s, row_view<T> key, const T* query, ptrdiff_t lanes,
                           int64_t head_dim, T* raw, vec<T>* most, vec<T>* least,
                           prefetches* ahead = nullptr) {
  constexpr int w = width<T>;
  dot_products<T>({key.data + s.begin * key.stride, key.stride}, s.end - s.begin, s.last - s.first,
                  query + s.first * w, lanes, head_dim, raw + s.begin * lanes + s.first * w, most,
                  least, ahead);
}
template <class T>
inline void multiply_strip(const strip& s, row_view<T> key, const T* query, ptrdiff_t lanes,
                           int64_t head_dim, T* raw) {
  vec<T> most[panel_vectors], least[panel_vectors];
  multiply_strip(s, key, query, lanes, head_dim, raw, most, least);
}

/// Writes the products of a tile with a panel of queries to raw, and its bias to the workspace.
/// False, without computing anything, if the panel sees none of its keys. `product(strip, most,
/// least)` writes the products of a strip's keys with its vectors, and their extremes per lane.
template <class T, class Product>
ATTNSCALE_INLINE bool multiply_tile_by(const score_block& b, const tile_workspace<T>& ws,
                                       const key_tile& tile, query_panel panel, T* raw,
                                       tile_products<T>& out, Product&& product) {
  if (!look_at_tile(b, ws, tile, panel, out)) return false;
  if (!out.biased) {
    product(strip{0, tile.keys, 0, panel.vectors}, out.most, out.least);
    return true;
  }
  vec<T> most[panel_vectors], least[panel_vectors];
  for (int i = 0; i < out.n_strips; ++i) product(out.strips[i], most, least);
  if (has_distance_tables(b))
    apply_distance_tables(b, panel, tile.key, tile.keys, ws.rows, ws.table, raw, ws.bias);
  return true;
}

/// Products for queries that are packed in `query`. `ahead` prefetches rows on the way.
template <class T>
inline bool multiply_tile(const score_block& b, const tile_workspace<T>& ws, const key_tile& tile,
                          row_view<T> key, query_panel panel, const T* query, T* raw,
                          tile_products<T>& out, prefetches* ahead = nullptr) {
  const ptrdiff_t lanes = panel.vectors * width<T>;
  return multiply_tile_by(b, ws, tile, panel, raw, out,
                          [&](const strip& s, vec<T>* most, vec<T>* least) {
                            multiply_strip(s, key, query, lanes, b.head_dim, raw, most, least,
                                           out.biased ? nullptr : ahead);
                          });
}

/// Extremes of the visible raw products of each lane of a biased tile.
template <class T>
inline void find_extremes(const T* bias, const T* raw, tile_products<T>& tile) {
  constexpr int w = width<T>;
  const vector_keys& seen = tile.seen;
  const vec<T> masked = broadcast(masked_score<T>), infinity = broadcast(limits<T>::infinity);
  for (int n = 0; n < seen.vectors; ++n) {
    vec<T> most = -infinity, least = infinity;
    for (int j = seen.begin[n]; j < seen.end[n]; ++j) {
      const int at = (j * seen.vectors + n) * w;
      const vec<T> r = load(raw + at);
      const vec_mask<T> is_masked = load(bias + at) == masked;
      most = max_or(xsimd::select(is_masked, -infinity, r), most);
      least = min_or(xsimd::select(is_masked, infinity, r), least);
    }
    tile.most[n] = most;
    tile.least[n] = least;
  }
}

}  // namespace
