// SPDX-License-Identifier: BSD-3-Clause
//
// Queries, keys and values in bfloat16, in memory and in the products: two per lane. Scores,
// weights and sums are float32; weights are rounded to bfloat16 before they multiply the values.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/types.hpp"
#include "kernels/simd/bfloat16.hpp"
#include "kernels/simd/float16.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/softmax/weights-inl.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/pairs-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::normalizer;
using attnscale::detail::attend_block;

/// Weights of a lane, rounded, in pairs of keys: pair p in row p.
struct weights_in_pairs {
  template <int N>
  static ATTNSCALE_INLINE void store_weights(float* scores, ptrdiff_t step, int j,
                                             const vec<float> (&weight)[N]) {
#pragma GCC unroll 2
    for (int i = 0; i < N; i += 2)
      store(scores + (j + i) / 2 * step,
            from_bits(rounded_pair(weight[i], i + 1 < N ? weight[i + 1] : broadcast(0.0f))));
  }
};

/// Products: vector_pairs or amx_pairs.
template <class Products>
class bfloat16_operands {
 public:
  /// Queries of a full block; see plain_operands. Two panels share the values of a tile, whose
  /// layout takes time.
  static constexpr int block_rows = 2 * panel_vectors * width<float>;
  using kept_weights = weights_in_pairs;

  tile_workspace<float> tile;

  bfloat16_operands(const attend_block& b, arena& a)
      : tile(b, b.value_dim, a, 0, Products::spare_keys), b_(b) {
    columns_ = round_up(b.head_dim, Products::key_channels);
    channels_ = round_up(b.value_dim, Products::value_channels);
    query_ = a.take<uint32_t>(columns_ / 2 * block_rows);
    rows_ = a.take<uint16_t>(w * columns_);
    edge_ = a.take<uint16_t>(Products::edge_rows * columns_);
    key_copy_ = a.take<uint16_t>(max_tile_keys * columns_);
    value_copy_ = a.take<uint16_t>(max_tile_keys * channels_);
    values_ = a.take<uint16_t>(Products::value_numbers(channels_));
    zeros_ = a.take<uint16_t>(channels_);
  }

  /// Rows of lanes for the output of a panel.
  static int64_t output_rows(const attend_block& b) {
    return round_up(b.value_dim, Products::value_channels);
  }

  void pack(query_panel panel) {
    for (int n = 0; n < panel.vectors; ++n) {
      const int row = panel.lane + n * w;
      pack_pairs(b_.query, row, b_.rows - row, b_.head_dim, columns_, rows_, query(panel) + n * w,
                 panel.vectors * w);
    }
    for (int64_t c = 0; c < channels_; ++c) zeros_[c] = 0;
  }

  /// Multiplies the packed queries by `sign`, 1 or -1 per lane.
  void negate(query_panel panel, const float* sign) {
    const vec<uint32_t> signs = broadcast(0x80008000u), none = broadcast(0u);
    for (int n = 0; n < panel.vectors; ++n) {
      const vec<uint32_t> flip = as_bits(
          xsimd::select(load(sign + n * w) < broadcast(0.0f), from_bits(signs), from_bits(none)));
      uint32_t* at = query(panel) + n * w;
      for (int64_t c = 0; c < columns_ / 2; ++c, at += panel.vectors * w)
        store(at, load(at) ^ flip);
    }
  }

  /// Sets the tile for multiply and add_values.
  void read(const key_tile& at) {
    key_ = view_bfloat16_rows(b_.key, at.key, at.keys, b_.head_dim, columns_, key_copy_);
    if (b_.output)
      value_ = view_bfloat16_rows(b_.value, at.key, at.keys, b_.value_dim, channels_, value_copy_);
    filled_ = false;
  }

  bool multiply(query_panel panel, const key_tile& at, tile_products<float>& t, prefetches* ahead) {
    const ptrdiff_t lanes = panel.vectors * w;
    return multiply_tile_by(b_, tile, at, panel, tile.scores, t,
                            [&](const strip& s, vec<float>* most, vec<float>* least) {
                              Products::dot(s, at.keys, key_, edge_, query(panel), lanes,
                                            columns_ / 2, tile.scores, most, least,
                                            t.biased ? nullptr : ahead);
                            });
  }

  /// out += the values times the weights that have replaced the scores; overwrites these.
  void add_values(const key_tile& at, const tile_products<float>& t, float* out) {
    if (!filled_) fill(at.keys, t.biased);
    if (any_hidden_) add_hidden(at.keys, t.seen, out);
    const ptrdiff_t lanes = t.seen.vectors * w;
    const bool paired = !t.biased && is_exponential(b_.rule);
    for (int n = 0; !paired && n < t.seen.vectors; ++n)
      pair_weights(t.seen.begin[n], t.seen.end[n], lanes, tile.scores + n * w);
    Products::add(t.seen, values_, channels_, tile.scores, out);
  }

 private:
  static constexpr int w = width<float>;

  uint32_t* query(query_panel panel) const { return query_ + panel.lane * (columns_ / 2); }

  const uint16_t* value_row(int j) const { return value_.data + j * value_.stride; }

  /// Lays out the values of a tile. Where some rows do not see the whole tile, keys whose values
  /// hold NaN or infinity are left to add_hidden.
  void fill(int keys, bool biased) {
    filled_ = true;
    any_hidden_ = false;
    for (int j = 0; biased && j < keys; ++j) {
      hidden_[j] = any_nonfinite(value_row(j), b_.value_dim);
      any_hidden_ = any_hidden_ || hidden_[j];
    }
    const auto row = [&](int j) {
      return j < keys && !(any_hidden_ && hidden_[j]) ? value_row(j) : zeros_;
    };
    Products::fill_values(keys, channels_, row, values_);
  }

  static int64_t round_up(int64_t n, int step) { return (n + step - 1) / step * step; }

  /// Adds weight * value of such keys lane by lane: a plain product would carry 0 * NaN into rows
  /// that do not see them.
  void add_hidden(int keys, const vector_keys& seen, float* out) {
    const int lanes = seen.vectors * w;
    for (int j = 0; j < keys; ++j) {
      for (int r = 0; hidden_[j] && r < lanes; ++r) {
        const bool sees = seen.begin[r / w] <= j && j < seen.end[r / w] &&
                          tile.bias[j * lanes + r] != masked_score<float>;
        for (int64_t c = 0; sees && c < b_.value_dim; ++c)
          out[c * lanes + r] += tile.scores[j * lanes + r] * float_from_bfloat16(value_row(j)[c]);
      }
    }
  }

  const attend_block& b_;
  int64_t columns_, channels_;
  uint32_t* query_;
  uint16_t *rows_, *edge_, *key_copy_, *value_copy_, *values_, *zeros_;
  bfloat16_rows key_ = {nullptr, 0}, value_ = {nullptr, 0};
  bool filled_ = false;  ///< values_ holds the values of the tile
  bool hidden_[max_tile_keys], any_hidden_ = false;
};

}  // namespace
