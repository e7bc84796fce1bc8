// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/gradient/block.hpp"
#include "kernels/gradient/lists-inl.hpp"
#include "kernels/gradient/pairs-inl.hpp"
#include "kernels/gradient/rows-inl.hpp"
#include "kernels/gradient/weights-inl.hpp"
#include "kernels/numbers.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/softmax/output-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::detail::gradient_block;

/// Scratch memory of a block of the backward pass.
template <class T>
struct gradient_workspace {
  int64_t panel_keys;  ///< of weights and gradients: a tile, plus what products write beyond it
  int64_t sum_rows;    ///< rows of lanes of d_query: head_dim, plus what products write beyond it
  tile_workspace<T> tile;
  dense_rows<T> query, grad_output;  ///< queries times their scale
  T *grad_panel, *output_panel, *value_copy, *value_row, *key_clean;
  T *weights, *gradients;                 ///< [key][lane], one panel after the other
  T *slopes = nullptr, *plain = nullptr;  ///< one panel
  distance_sums<T> distance_scale, distance_bias;
  T *d_query, *total = nullptr, *compensation = nullptr;
  gradient_lanes<T> row;
  T* own_constant;  ///< row.constant without grad_output . output
  T* nat_scale;
  T* mask_sums;             ///< per row, for a mask that all keys share
  gradient_lists<T> lists;  // last, because their size is that of the support

  gradient_workspace(const gradient_block& b, arena& a, int spare_keys, int64_t d_query_rows)
      : panel_keys(max_tile_keys + spare_keys),
        sum_rows(d_query_rows),
        tile(b, b.value_dim, a, gradient_block_rows<T>),
        query(b.head_dim, a),
        grad_output(b.value_dim, a),
        lists(take_arrays(b, a), a) {}

  /// Reads the per-row numbers of the block.
  void read_rows(const gradient_block& b) {
    const auto& given = *b.given;
    for (int r = 0; r < gradient_block_rows<T>; ++r) {
      const bool there = r < b.rows;
      const double scale = there ? b.scale[r * b.scale_row] : 0.0;
      nat_scale[r] = static_cast<T>(scale);
      row.scale[r] = static_cast<T>(scale * log2e);
      // Lanes beyond the block get weights of exactly 0.
      row.reference[r] = there ? static_cast<T>(given.reference[r]) : T(0x1p60);
      const auto of = [&](const double* x) { return there ? static_cast<T>(x[r]) : T(0); };
      row.remainder[r] = of(given.remainder);
      row.constant[r] = own_constant[r] = of(given.constant);
      row.linear[r] = of(given.linear);
      row.square[r] = of(given.square);
      row.weight[r] = of(given.weight);
      row.factor[r] = of(given.factor);
      mask_sums[r] = T(0);
    }
  }

  /// Heavy keys of a panel and a tile that begins at this key.
  heavy_keys<T> heavy(const gradient_block& b, query_panel panel, int64_t key) const {
    const int64_t at = panel.lane * b.value_dim;
    const T most = b.centred && b.grad_output.data ? T(0.5) : limits<T>::infinity;
    return {most,
            grad_panel + at,
            output_panel + at,
            own_constant + panel.lane,
            b.value,
            b.value_dim,
            key,
            panel.vectors * width<T>,
            value_row};
  }

 private:
  const gradient_block& take_arrays(const gradient_block& b, arena& a) {
    constexpr int64_t lanes = gradient_block_rows<T>,
                      panel = max_tile_keys * panel_vectors * width<T>;
    grad_panel = a.take<T>(b.value_dim * lanes);
    output_panel = a.take<T>(b.value_dim * lanes);
    value_copy = a.take<T>(is_direct<T>(b.value.layout) ? 0 : max_tile_keys * b.value_dim);
    value_row = a.take<T>(b.value_dim + width<T>);
    key_clean = a.take<T>(max_tile_keys * b.head_dim);
    weights = a.take<T>(panel_keys * lanes);
    gradients = a.take<T>(panel_keys * lanes);
    if (changes_scores(b.form) || b.tables.distance_scale.data) slopes = a.take<T>(panel);
    if (b.d_distance_scale) plain = a.take<T>(panel), distance_scale.take(b.key_end, lanes, a);
    if (b.d_distance_bias) distance_bias.take(b.key_end, lanes, a);
    d_query = a.take<T>(sum_rows * lanes);
    if (b.key_end - b.key_begin > tiles_per_carry * tile_keys) {
      total = a.take<T>(sum_rows * lanes);
      compensation = a.take<T>(sum_rows * lanes);
    }
    const auto numbers = [&a] { return a.take<T>(lanes); };
    row = {numbers(), numbers(), numbers(), numbers(), numbers(), numbers(), numbers(), numbers()};
    own_constant = numbers();
    nat_scale = numbers();
    mask_sums = numbers();
    return b;
  }
};

}  // namespace
