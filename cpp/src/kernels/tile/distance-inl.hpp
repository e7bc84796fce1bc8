// SPDX-License-Identifier: BSD-3-Clause
//
// Tables over (query, key), usually over their distance: distance_scale multiplies the raw dot
// product, distance_bias is added to the score. They act on the raw products and on the bias panel
// of a tile.
#pragma once

#include <stdint.h>

#include "kernels/numbers.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/rows-inl.hpp"

namespace {

using attnscale::detail::matrix;
using attnscale::detail::score_block;

/// Calls f(j, element) for the elements (row, key + j) of a table of any type, j < keys.
template <class T, class F>
ATTNSCALE_INLINE void for_table_row(const matrix& table, int64_t row, int64_t key, int keys,
                                    F&& f) {
  const ptrdiff_t step = table.layout.column, start = row * table.layout.row + key * step;
  if (table.layout.type == native<T>)
    for (int j = 0; j < keys; ++j) f(j, static_cast<const T*>(table.data)[start + j * step]);
  else
    for (int j = 0; j < keys; ++j)
      f(j, read_element<T>(table.data, table.layout.type, start + j * step));
}

/// A table over the keys [key, key + keys) and a panel of queries, [key][lane]. Lanes beyond the
/// block repeat its last row. `copy` is scratch of width * keys elements.
template <class T>
inline void fill_distance_panel(const matrix& table, int rows, query_panel panel, int64_t key,
                                int keys, T* copy, T* out) {
  constexpr int w = width<T>;
  const int lanes = panel.vectors * w;
  for (int n = 0; n < panel.vectors; ++n) {
    const int first = panel.lane + n * w;
    if (is_direct<T>(table.layout) && first + w <= rows) {
      const T* const data = static_cast<const T*>(table.data);
      const row_view<T> in{data + first * table.layout.row + key, table.layout.row};
      rows_to_lanes(in, keys, out + n * w, lanes);
      continue;
    }
    for (int r = 0; r < w; ++r) {
      for_table_row<T>(table, first + r < rows ? first + r : rows - 1, key, keys,
                       [&](int j, T x) { copy[r * keys + j] = x; });
    }
    rows_to_lanes(row_view<T>{copy, keys}, keys, out + n * w, lanes);
  }
}

/// raw <- raw * distance_scale, and bias <- bias + distance_bias for visible keys.
template <class T>
inline void apply_distance_tables(const score_block& block, query_panel panel, int64_t key,
                                  int keys, T* copy, T* table, T* raw, T* bias) {
  const int elements = keys * panel.vectors * width<T>;
  if (block.tables.distance_scale.data) {
    fill_distance_panel(block.tables.distance_scale, block.rows, panel, key, keys, copy, table);
    for (int i = 0; i < elements; i += width<T>) store(raw + i, load(raw + i) * load(table + i));
  }
  if (!block.tables.distance_bias.data) return;
  fill_distance_panel(block.tables.distance_bias, block.rows, panel, key, keys, copy, table);
  const vec<T> masked = broadcast(masked_score<T>), unit = broadcast(T(block.unit));
  for (int i = 0; i < elements; i += width<T>) {
    const vec<T> b = load(bias + i);
    store(bias + i, xsimd::select(b == masked, masked, fma(load(table + i), unit, b)));
  }
}

/// Tables for one query with the keys in consecutive elements.
template <class T>
inline void apply_distance_tables_to_row(const score_block& block, int row, int64_t key, int keys,
                                         T* raw, T* bias) {
  if (block.tables.distance_scale.data)
    for_table_row<T>(block.tables.distance_scale, row, key, keys,
                     [&](int j, T factor) { raw[j] *= factor; });
  if (block.tables.distance_bias.data)
    for_table_row<T>(block.tables.distance_bias, row, key, keys, [&](int j, T offset) {
      if (bias[j] != masked_score<T>) bias[j] += offset * T(block.unit);
    });
}

}  // namespace
