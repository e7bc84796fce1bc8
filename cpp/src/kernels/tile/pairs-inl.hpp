// SPDX-License-Identifier: BSD-3-Clause
//
// Pairs of bfloat16 numbers: a lane holds two channels of a query, or the weights of two keys.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/bfloat16.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/rows-inl.hpp"

namespace {

/// Rows of bfloat16 numbers, as integers; the stride counts numbers.
using bfloat16_rows = row_view<uint16_t>;

/// Reads `given` columns of a row of m, padded with zeros up to `columns`.
inline void read_bfloat16_row(const matrix& m, int64_t row, int64_t given, int64_t columns,
                              uint16_t* out) {
  const uint16_t* const in = static_cast<const uint16_t*>(m.data) + row * m.layout.row;
  if (m.layout.column == 1)
    __builtin_memcpy(out, in, static_cast<size_t>(given) * sizeof *out);
  else
    for (int64_t i = 0; i < given; ++i) out[i] = in[i * m.layout.column];
  for (int64_t i = given; i < columns; ++i) out[i] = 0;
}

/// Rows [row, row + rows) of m, padded with zeros from `given` up to `columns` columns: in place
/// without padding and gaps, else copied.
inline bfloat16_rows view_bfloat16_rows(const matrix& m, int64_t row, int64_t rows, int64_t given,
                                        int64_t columns, uint16_t* copy) {
  if (m.layout.column == 1 && columns == given)
    return {static_cast<const uint16_t*>(m.data) + row * m.layout.row, m.layout.row};
  for (int64_t r = 0; r < rows; ++r)
    read_bfloat16_row(m, row + r, given, columns, copy + r * columns);
  return {copy, columns};
}

/// Packs `rows` rows of m, from `row` on, into one vector of lanes, a pair of columns each; missing
/// rows and the columns from `given` up to `columns`, an even number, are zero.
inline void pack_pairs(const matrix& m, int64_t row, int rows, int64_t given, int64_t columns,
                       uint16_t* copy, uint32_t* panel, ptrdiff_t lanes) {
  for (int r = 0; r < width<float>; ++r)
    read_bfloat16_row(m, row + r, r < rows ? given : 0, columns, copy + r * columns);
  // As bits, which transposition does not change.
  rows_to_lanes<float>({reinterpret_cast<const float*>(copy), columns / 2}, columns / 2,
                       reinterpret_cast<float*>(panel), lanes);
}

/// Visible keys of a vector of queries in a tile, in pairs.
inline vector_keys pairs_of(const vector_keys& keys) {
  vector_keys pairs = keys;
  for (int n = 0; n < keys.vectors; ++n) {
    pairs.begin[n] = keys.begin[n] / 2;
    pairs.end[n] = keys.begin[n] < keys.end[n] ? (keys.end[n] + 1) / 2 : pairs.begin[n];
  }
  return pairs;
}

/// Turns the weights of a vector's keys [begin, end), rows `lanes` apart, into pairs of keys in
/// place: pair p is row p. The other key of an incomplete pair at either end gets weight 0.
inline void pair_weights(int begin, int end, ptrdiff_t lanes, float* weights) {
  const vec<float> none = broadcast(0.0f);
  for (int pair = begin / 2; 2 * pair < end; ++pair) {
    const int key = 2 * pair;
    const vec<float> low = key < begin ? none : load(weights + key * lanes);
    const vec<float> high = key + 1 < end ? load(weights + (key + 1) * lanes) : none;
    // As bits: see above.
    store(weights + pair * lanes, from_bits(rounded_pair(low, high)));
  }
}

}  // namespace
