// SPDX-License-Identifier: BSD-3-Clause
//
// Products of the backward pass on bfloat16 arrays. Scores come from queries and keys without
// conversion; in tiles without hidden pairs the other products, too, are of bfloat16, with weights
// and gradients of scores rounded as their inputs. Sums are float32.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/gradient/block.hpp"
#include "kernels/gradient/rows-inl.hpp"
#include "kernels/simd/bfloat16.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/pairs-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::detail::gradient_block;

/// Rows of a block, queries or gradients of outputs, in two layouts: panels of pairs of columns for
/// products with keys or values, and pairs of rows for sums over rows.
struct paired_rows {
  uint32_t *panel, *pairs;
  int64_t columns, channels;  ///< padded, of the panels and of the pairs
  uint16_t* rows;

  paired_rows(int64_t given, int column_step, int channel_step, arena& a)
      : columns((given + column_step - 1) / column_step * column_step),
        channels((given + channel_step - 1) / channel_step * channel_step) {
    constexpr int lanes = gradient_block_rows<float>;
    panel = a.take<uint32_t>(columns / 2 * lanes);
    pairs = a.take<uint32_t>(channels * lanes / 2);
    const int64_t most = columns > channels ? columns : channels;
    rows = a.take<uint16_t>(most * (width<float> > 2 ? width<float> : 2));
  }

  void fill(const matrix& m, int count, int64_t given) {
    constexpr int w = width<float>;
    for_panels<float>(count, [&](query_panel p) {
      for (int n = 0; n < p.vectors; ++n)
        pack_pairs(m, p.lane + n * w, count - p.lane - n * w, given, columns, rows,
                   panel + p.lane * (columns / 2) + n * w, p.vectors * w);
    });
    for (int r = 0; r < gradient_block_rows<float>; r += 2) {
      for (int i = 0; i < 2; ++i)
        read_bfloat16_row(m, r + i, r + i < count ? given : 0, channels, rows + i * channels);
      for (int64_t c = 0; c < channels; c += w)
        store(pairs + r / 2 * channels + c, interleaved_pair(rows + c, rows + channels + c));
    }
  }

  const uint32_t* at(query_panel p) const { return panel + p.lane * (columns / 2); }
};

template <class Products>
class bfloat16_products {
 public:
  static constexpr bool has_pairs = true;
  static constexpr int spare_keys = Products::spare_keys;

  bfloat16_products(const gradient_block& b, arena& a)
      : b_(b),
        query_(b.head_dim, Products::key_channels, Products::value_channels, a),
        grad_output_(b.value_dim, Products::key_channels, Products::value_channels, a) {
    constexpr int64_t most = max_tile_keys + Products::spare_keys;
    key_copy_ = a.take<uint16_t>(max_tile_keys * query_.columns);
    value_copy_ = a.take<uint16_t>(max_tile_keys * grad_output_.columns);
    edge_ = a.take<uint16_t>(Products::edge_rows * (query_.columns + grad_output_.columns));
    weights_ = a.take<uint16_t>(most * lanes);
    gradients_ = a.take<uint16_t>(most * lanes);
    keys_ = a.take<uint16_t>(Products::value_numbers(query_.channels));
    key_row_ = a.take<uint16_t>(max_tile_keys * query_.channels);
    zeros_ = a.take<uint16_t>(query_.channels);
  }

  /// Rows of lanes for the sums over keys of a panel.
  static int64_t sum_rows(const gradient_block& b) {
    constexpr int step = Products::value_channels;
    return (b.head_dim + step - 1) / step * step;
  }

  void prepare() {
    query_.fill(b_.query, b_.rows, b_.head_dim);
    if (b_.grad_output.data) grad_output_.fill(b_.grad_output, b_.rows, b_.value_dim);
    for (int64_t c = 0; c < query_.channels; ++c) zeros_[c] = 0;
  }

  /// Products of keys of some strips with the queries of a panel.
  void scores(query_panel panel, const key_tile& at, const strip* strips, int n, float* raw) {
    const bfloat16_rows key =
        view_bfloat16_rows(b_.key, at.key, at.keys, b_.head_dim, query_.columns, key_copy_);
    for (int i = 0; i < n; ++i) dot(strips[i], at.keys, key, query_, panel, raw);
  }

  /// Products of the values with the gradients of the outputs.
  void weight_gradients(query_panel panel, const key_tile& at, float* out) {
    const bfloat16_rows value = view_bfloat16_rows(b_.value, at.key, at.keys, b_.value_dim,
                                                   grad_output_.columns, value_copy_);
    dot({0, at.keys, 0, panel.vectors}, at.keys, value, grad_output_, panel, out);
  }

  /// Rounds the weights of a panel and the gradients of its scores, times their row's scale, for
  /// add_to_keys; gradients become pairs of keys in place.
  void round(query_panel panel, int keys, const float* weights, const float* scale,
             float* gradients) {
    const ptrdiff_t step = panel.vectors * w;
    const vec<float> none = broadcast(0.0f);
    for (int n = 0; n < panel.vectors; n += 2) {
      const bool two = n + 1 < panel.vectors;
      const vec<float> first = load(scale + n * w), second = two ? load(scale + (n + 1) * w) : none;
      for (int j = 0; j < keys; ++j) {
        const ptrdiff_t at = j * step + n * w, to = j * lanes + panel.lane + n * w;
        store_rounded(weights_ + to, load(weights + at), two ? load(weights + at + w) : none);
        store_rounded(gradients_ + to, load(gradients + at) * first,
                      two ? load(gradients + at + w) * second : none);
      }
    }
    for (int n = 0; n < panel.vectors; ++n) pair_weights(0, keys, step, gradients + n * w);
  }

  /// Adds to the gradients of the values and keys of a tile: sums over all queries of the block.
  void add_to_values(int keys, float* out, ptrdiff_t stride) const {
    Products::add_rows(keys, weights_, lanes, row_pairs(), grad_output_.pairs,
                       grad_output_.channels, b_.value_dim, out, stride);
  }
  void add_to_keys(int keys, float* out, ptrdiff_t stride) const {
    Products::add_rows(keys, gradients_, lanes, row_pairs(), query_.pairs, query_.channels,
                       b_.head_dim, out, stride);
  }

  /// Prepares the keys of a tile for add_to_queries.
  void read_keys(const key_tile& at) {
    const bfloat16_rows key =
        view_bfloat16_rows(b_.key, at.key, at.keys, b_.head_dim, query_.channels, key_row_);
    const auto row = [&](int j) { return j < at.keys ? key.data + j * key.stride : zeros_; };
    Products::fill_values(at.keys, query_.channels, row, keys_);
  }

  /// Adds to the gradients of the queries of a panel: sums over the keys of a tile.
  void add_to_queries(query_panel panel, const key_tile& at, float* gradients, float* out) const {
    vector_keys all;
    all.vectors = panel.vectors;
    for (int n = 0; n < panel.vectors; ++n) all.begin[n] = 0, all.end[n] = at.keys;
    Products::add(all, keys_, query_.channels, gradients, out);
  }

 private:
  static constexpr int w = width<float>, lanes = gradient_block_rows<float>;

  /// Number of row pairs that round() writes: two vectors at a time.
  int row_pairs() const { return (b_.rows + 2 * w - 1) / (2 * w) * w; }

  void dot(const strip& s, int keys, bfloat16_rows rows, const paired_rows& of, query_panel panel,
           float* out) {
    vec<float> most[panel_vectors], least[panel_vectors];
    Products::dot(s, keys, rows, edge_, of.at(panel), panel.vectors * w, of.columns / 2, out, most,
                  least, nullptr);
  }

  const gradient_block& b_;
  paired_rows query_, grad_output_;
  uint16_t *key_copy_, *value_copy_, *edge_, *weights_, *gradients_, *keys_, *key_row_, *zeros_;
};

}  // namespace
