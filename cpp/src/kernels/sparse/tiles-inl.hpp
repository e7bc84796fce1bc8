// SPDX-License-Identifier: BSD-3-Clause
//
// Finished scores of a tile, for rows whose weights depend on all of their scores: entmax, top-k.
// Also records what makes a row NaN: a visible score or value that is not finite.
#pragma once

#include <stdint.h>

#include "kernels/numbers.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/softmax/online-inl.hpp"
#include "kernels/softmax/output-inl.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::detail::attend_block;
using attnscale::detail::ln2;
using attnscale::detail::wanted_least;

/// Nats per unit of a block's scores.
inline double nats_of(const attend_block& b) { return b.unit == 1 ? 1 : ln2; }

template <class T>
struct sparse_tile_workspace {
  tile_workspace<T> tile;
  T *value_copy, *scale, *top, *least, *nonfinite;

  sparse_tile_workspace(const attend_block& b, arena& a) : tile(b, b.value_dim, a) {
    constexpr int64_t lanes = block_rows<T>;
    value_copy = a.take<T>(is_direct<T>(b.value.layout) ? 0 : max_tile_keys * b.value_dim);
    scale = a.take<T>(lanes);
    top = a.take<T>(lanes);
    least = a.take<T>(lanes);
    nonfinite = a.take<T>(lanes * b.value_dim);
  }
};

/// Products of a tile, finished scores if it is biased; the largest score per lane.
template <class T>
struct sparse_tile : tile_products<T> {
  vec<T> high[panel_vectors];
};

template <class T>
class sparse_tiles {
 public:
  sparse_tiles(const attend_block& block, const sparse_tile_workspace<T>& workspace)
      : ws(workspace), walk(block), look_at_values(block.output != nullptr), b_(block) {
    for (int r = 0; r < block_rows<T>; ++r) {
      const double scale = r < b_.rows ? b_.scale[r * b_.scale_row] : 0.0;
      ws.scale[r] = static_cast<T>((scale < 0 ? -scale : scale) * b_.unit);
      ws.least[r] = limits<T>::infinity;
      bad[r] = false;
    }
  }

  /// Packs the queries of a panel, with the signs of their scales.
  void pack(query_panel panel, T* out) {
    const int lane = panel.lane, lanes = panel.vectors * w;
    pack_queries(b_, panel, ws.tile.rows, out);
    for (int i = 0; i < lanes; ++i) {
      if (lane + i >= b_.rows || !(b_.scale[(lane + i) * b_.scale_row] < 0)) continue;
      for (int64_t c = 0; c < b_.head_dim; ++c) out[c * lanes + i] = -out[c * lanes + i];
    }
  }

  /// Keys of a tile; records which of its values are not finite. ahead: also prefetches the values
  /// of as many later keys.
  row_view<T> view(const key_tile& tile, int ahead = 0) {
    if (look_at_values) find_nonfinite(tile.key, tile.keys, ahead);
    return ws.tile.keys(b_, tile);
  }

  /// Scores of a tile; false if the panel sees none of its keys.
  bool score(query_panel panel, const key_tile& tile, row_view<T> k, const T* query,
             sparse_tile<T>& out) {
    T* const scores = ws.tile.scores;
    const int lane = panel.lane;
    if (!multiply_tile(b_, ws.tile, tile, k, panel, query, scores, out)) return false;
    if (nonfinite_) propagate_nonfinite(lane, tile.keys, out);
    const panel_state<T> state{ws.scale + lane, nullptr, nullptr};
    if (out.biased) {
      finish_scores(state, ws.tile.bias, out.seen, b_.form, scores, scores, out.high,
                    static_cast<T>(b_.unit));
      if (b_.wanted & wanted_least) track_least(lane, out.seen);
      return true;
    }
    for (int n = 0; n < panel.vectors; ++n) {
      mark_infinite(out.least[n], lane + n * w);
      out.high[n] = out.most[n] * load(state.scale + n * w);
      if (b_.wanted & wanted_least)
        lower_least(lane + n * w, out.least[n] * load(state.scale + n * w));
      // A row whose scores are below the type's range still has keys.
      mark_infinite(out.high[n], lane + n * w);
    }
    return true;
  }

  /// Tracks the smallest of row r's finished scores in a tile, a lane for each key of a vector.
  void track_row_least(int r, const T* scores, int keys) {
    if (!(b_.wanted & wanted_least)) return;
    T lanes[w];
    store(lanes, least_visible(scores, w, (keys + w - 1) / w));
    for (const T each : lanes) ws.least[r] = each < ws.least[r] ? each : ws.least[r];
  }

  /// Smallest visible score of row r, in nats.
  double least_of(int r, bool nan) const {
    return nan ? __builtin_nan("") : nats_of(b_) * static_cast<double>(ws.least[r]);
  }

  /// Propagates values of the tile that are not finite to one row, if it sees them. bias: masked
  /// keys, or null.
  void propagate_row(int r, int keys, const T* bias) {
    if (!look_at_values || !nonfinite_) return;
    T* nonfinite = ws.nonfinite + r * b_.value_dim;
    for (int j = 0; j < keys; ++j) {
      if (!nonfinite_key_[j] || (bias && bias[j] == masked_score<T>)) continue;
      const T* v = value_.data + j * value_.stride;
      for (int64_t c = 0; c < b_.value_dim; ++c) nonfinite[c] += v[c] * T(0);
    }
  }

  /// Writes row r from its unfinished sum of values; NaN if `nan`.
  void write(int r, bool nan, T* sum) {
    for (int64_t c = 0; nan && c < b_.value_dim; ++c) sum[c] = static_cast<T>(__builtin_nan(""));
    for (int64_t c = 0; has_nonfinite_values && c < b_.value_dim; ++c)
      sum[c] += ws.nonfinite[r * b_.value_dim + c];
    write_row(b_.output, b_.output_layout, r, b_.value_dim, sum);
  }

  const sparse_tile_workspace<T> ws;
  tile_walk walk;
  bool look_at_values, has_nonfinite_values = false;
  bool bad[block_rows<T>];  ///< a visible raw score was -inf

 private:
  static constexpr int w = width<T>;

  /// A tile may be scored twice if a row is left to all_score_rows.
  void lower_least(int lane, vec<T> low) {
    store(ws.least + lane, min_or(low, load(ws.least + lane)));
  }

  void track_least(int lane, const vector_keys& seen) {
    for (int n = 0; n < seen.vectors; ++n) {
      const T* first = ws.tile.scores + (seen.begin[n] * seen.vectors + n) * w;
      lower_least(lane + n * w,
                  least_visible(first, seen.vectors * w, seen.end[n] - seen.begin[n]));
    }
  }

  /// Marks rows with a visible score of -inf as NaN: it is below every threshold.
  void mark_infinite(vec<T> low, int lane) {
    if (!any<T>(low == broadcast(-limits<T>::infinity))) return;
    T lanes[w];
    store(lanes, low);
    for (int r = 0; r < w; ++r) bad[lane + r] = bad[lane + r] || lanes[r] == -limits<T>::infinity;
  }

  // ---- values that are not finite: visible ones make a row NaN, even with weight 0 ----

  void find_nonfinite(int64_t key, int keys, int ahead) {
    value_ = view_rows(b_.value, key, keys, b_.value_dim, ws.value_copy);
    const bool direct = is_direct<T>(b_.value.layout);
    nonfinite_ = any_nonfinite(value_, keys, b_.value_dim, direct ? ahead * value_.stride : 0);
    if (!nonfinite_) return;
    for (int j = 0; j < keys; ++j)
      nonfinite_key_[j] = has_nonfinite(value_.data + j * value_.stride, b_.value_dim);
    if (has_nonfinite_values) return;
    has_nonfinite_values = true;
    for (int64_t i = 0; i < block_rows<T> * b_.value_dim; ++i) ws.nonfinite[i] = T(0);
  }

  void propagate_nonfinite(int lane, int keys, const tile_products<T>& tile) {
    if (!look_at_values) return;
    const vector_keys& seen = tile.seen;
    const int lanes = seen.vectors * w;
    for (int j = 0; j < keys; ++j)
      for (int i = 0; nonfinite_key_[j] && i < lanes; ++i) {
        const bool inside = seen.begin[i / w] <= j && j < seen.end[i / w];
        if (!inside || (tile.biased && ws.tile.bias[j * lanes + i] == masked_score<T>)) continue;
        T* nonfinite = ws.nonfinite + (lane + i) * b_.value_dim;
        const T* v = value_.data + j * value_.stride;
        for (int64_t c = 0; c < b_.value_dim; ++c) nonfinite[c] += v[c] * T(0);
      }
  }

  const attend_block& b_;
  bool nonfinite_ = false, nonfinite_key_[max_tile_keys];
  row_view<T> value_ = {nullptr, 0};
};

}  // namespace
