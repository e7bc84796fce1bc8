// SPDX-License-Identifier: BSD-3-Clause
//
// Queries, keys and values as elements of the compute type; arrays of other types or with gaps are
// copied before a product.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/simd.hpp"
#include "kernels/softmax/online-inl.hpp"
#include "kernels/softmax/output-inl.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/product-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::detail::attend_block;

template <class T>
class plain_operands {
 public:
  /// Queries of a full block.
  static constexpr int block_rows = ::block_rows<T>;
  /// Storage of softmax weights in tiles without hidden pairs.
  using kept_weights = weights_in_place;

  tile_workspace<T> tile;

  plain_operands(const attend_block& b, arena& a) : tile(b, b.value_dim, a), b_(b) {
    value_copy_ = a.take<T>(is_direct<T>(b.value.layout) ? 0 : max_tile_keys * b.value_dim);
    value_clean_ = a.take<T>(max_tile_keys * b.value_dim);
  }

  /// Rows of lanes for the output of a panel.
  static int64_t output_rows(const attend_block& b) { return b.value_dim; }

  void pack(query_panel panel) { pack_queries(b_, panel, tile.rows, query(panel)); }

  /// Multiplies the packed queries by `sign`, one number per lane.
  void negate(query_panel panel, const T* sign) {
    vec<T> factor[panel_vectors];
    for (int n = 0; n < panel.vectors; ++n) factor[n] = load(sign + n * w);
    scale_lanes(query(panel), b_.head_dim * panel.vectors * w, panel.vectors, factor);
  }

  /// Sets the tile for multiply and add_values.
  void read(const key_tile& at) {
    key_ = tile.keys(b_, at);
    if (b_.output) value_ = view_rows(b_.value, at.key, at.keys, b_.value_dim, value_copy_);
  }

  bool multiply(query_panel panel, const key_tile& at, tile_products<T>& t, prefetches* ahead) {
    return multiply_tile(b_, tile, at, key_, panel, query(panel), tile.scores, t, ahead);
  }

  /// out += the values times the weights that have replaced the scores.
  void add_values(const key_tile& at, const tile_products<T>& t, T* out) {
    const int vectors = t.seen.vectors;
    if (!t.biased)
      return add_weighted_values(value_, at.keys, vectors, tile.scores, vectors * w, b_.value_dim,
                                 out);
    const row_view<T> v = isolate_nonfinite(value_, at.keys, b_.value_dim, t.seen, tile.bias,
                                            tile.scores, out, value_clean_);
    for (int i = 0; i < t.n_strips; ++i) add_strip(t.strips[i], v, vectors * w, out);
  }

 private:
  static constexpr int w = width<T>;

  T* query(query_panel panel) const { return tile.query + panel.lane * b_.head_dim; }

  void add_strip(const strip& s, row_view<T> v, ptrdiff_t lanes, T* out) {
    add_weighted_values<T>({v.data + s.begin * v.stride, v.stride}, s.end - s.begin,
                           s.last - s.first, tile.scores + s.begin * lanes + s.first * w, lanes,
                           b_.value_dim, out + s.first * w);
  }

  const attend_block& b_;
  T *value_copy_, *value_clean_;
  row_view<T> key_ = {nullptr, 0}, value_ = {nullptr, 0};
};

}  // namespace
