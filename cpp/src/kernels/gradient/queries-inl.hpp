// SPDX-License-Identifier: BSD-3-Clause
//
// Work on a vector of queries before the first tile and after the last one.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/gradient/block.hpp"
#include "kernels/gradient/products-inl.hpp"
#include "kernels/gradient/rows-inl.hpp"
#include "kernels/gradient/workspace-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/rows-inl.hpp"

namespace {

/// Loads vector n of a panel's grad_output and multiplies it by the output; this product is in the
/// gradient of every score of the row.
template <class T>
inline void pack_output(const gradient_block& b, const gradient_workspace<T>& ws, query_panel panel,
                        int n) {
  constexpr int w = width<T>;
  const int row = panel.lane + n * w, lanes = panel.vectors * w, left = b.rows - row;
  T* const grad_output = ws.grad_panel + panel.lane * b.value_dim + n * w;
  T* const output = ws.output_panel + panel.lane * b.value_dim + n * w;
  pack_lanes(b.grad_output, row, left, b.value_dim, ws.tile.rows, grad_output, lanes);
  pack_lanes(b.output, row, left, b.value_dim, ws.tile.rows, output, lanes);
  double product[w];
  dot_lanes(grad_output, output, lanes, b.value_dim, product);
  for (int r = 0; r < w && r < left; ++r) {
    b.product[row + r] = product[r];
    if (b.centred)
      ws.row.constant[row + r] = static_cast<T>(b.given->constant[row + r] - product[r]);
  }
}

/// Marks NaN rows: in `factor` if the weights are NaN, in `constant` if the output or its gradient
/// is. Returns NaN for a marked row, else 0.
template <class T>
inline double mark_row(const gradient_block& b, gradient_workspace<T>& ws, int r) {
  const double mark = b.grad_output.data ? b.product[r] * 0 : 0;
  ws.row.constant[r] = static_cast<T>(mark);
  return b.given->factor[r] * 0 + mark;
}

/// Gradients of weights: grad_output . value for the keys and vectors of a strip; 0 without values.
template <class T>
inline void multiply_values(const gradient_block& b, const gradient_workspace<T>& ws,
                            query_panel panel, const strip& s, row_view<T> v,
                            prefetcher ahead = {}) {
  constexpr int w = width<T>;
  const int lanes = panel.vectors * w, keys = s.end - s.begin;
  T* const out = ws.gradients + panel.lane * ws.panel_keys + s.begin * lanes + s.first * w;
  if (!b.grad_output.data) {
    for (int i = 0; i < keys * lanes; i += w) store(out + i, broadcast(T(0)));
    return;
  }
  plain_products<T>({v.data + s.begin * v.stride, v.stride}, keys, s.last - s.first,
                    ws.grad_panel + panel.lane * b.value_dim + s.first * w, lanes, b.value_dim, out,
                    ahead);
}

/// Writes the gradients of vector n of a panel and of its rows' scales.
template <class T>
inline void write_queries(const gradient_block& b, const gradient_workspace<T>& ws,
                          query_panel panel, int n, const T* gradient) {
  constexpr int w = width<T>;
  const int row = panel.lane + n * w, rows = b.rows - row < w ? b.rows - row : w;
  if (rows <= 0) return;
  const int lanes = panel.vectors * w;
  const T* const query = ws.tile.query + panel.lane * b.head_dim + n * w;
  double product[w];
  dot_lanes(query, gradient, lanes, b.head_dim, product);
  for (int r = 0; r < rows; ++r) b.d_scale[row + r] = product[r];
  T* const out = rows_at<T>(b.d_query, row);
  const vec<T> scale = load(ws.nat_scale + row);
  if (!b.shares_query)
    return lanes_to_rows(gradient, lanes, b.head_dim, scale, rows, out, b.d_query.row);
  lanes_to_rows(gradient, lanes, b.head_dim, scale, rows, ws.tile.rows, b.head_dim);
  for (int r = 0; r < rows; ++r)
    for (int64_t c = 0; c < b.head_dim; ++c)
      out[r * b.d_query.row + c] += ws.tile.rows[r * b.head_dim + c];
}

}  // namespace
