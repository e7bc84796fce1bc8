// SPDX-License-Identifier: BSD-3-Clause
//
// Layouts of the queries of a block and of their output gradients for the products: panels with
// queries in the lanes, and dense rows with channels in the lanes.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/simd.hpp"
#include "kernels/softmax/output-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

/// Queries of a full block. Each tile is a pass over rows of keys and values and their gradients:
/// twice the queries of the forward pass halve the number of passes.
template <class T>
constexpr int gradient_block_rows = 2 * block_rows<T>;

/// Rows of a block, padded with zeros to whole vectors both ways. `clean` leaves out rows with NaN
/// or infinity, for tiles that some rows do not see: 0 * NaN is not 0.
template <class T>
struct dense_rows {
  T *rows, *clean;
  ptrdiff_t stride;
  bool finite;

  dense_rows(int64_t columns, arena& a)
      : stride(static_cast<ptrdiff_t>((columns + width<T> - 1) / width<T> * width<T>)),
        finite(true) {
    rows = a.take<T>(gradient_block_rows<T> * stride);
    clean = a.take<T>(gradient_block_rows<T> * stride);
  }

  /// Row r of m times its factor (null: 1), padded with zeros to the last vector of rows.
  void fill(const matrix& m, int count, int64_t columns, const T* factor) {
    constexpr int w = width<T>;
    const int padded = (count + w - 1) / w * w;
    finite = true;
    bool bad[gradient_block_rows<T>];
    for (int r = 0; r < padded; ++r) {
      T* const row = rows + r * stride;
      if (r < count) read_row(m, r, columns, row);
      for (int64_t c = r < count ? columns : 0; c < stride; ++c) row[c] = T(0);
      if (factor && r < count)
        for (int64_t c = 0; c < stride; c += w)
          store(row + c, load(row + c) * broadcast(factor[r]));
      bad[r] = has_nonfinite(row, stride);
      finite = finite && !bad[r];
    }
    if (finite) return;
    for (int r = 0; r < padded; ++r)
      for (ptrdiff_t c = 0; c < stride; ++c)
        clean[r * stride + c] = bad[r] ? T(0) : rows[r * stride + c];
  }

  /// Rows for products with hidden pairs.
  const T* safe() const { return finite ? rows : clean; }
};

/// out[lane] = sum_c a[c][lane] * b[c][lane] for one vector of lanes, in double.
template <class T>
inline void dot_lanes(const T* a, const T* b, ptrdiff_t lanes, int64_t columns, double* out) {
  for (int r = 0; r < width<T>; ++r) out[r] = 0;
  for (int64_t c = 0; c < columns; ++c)
    add_to_double(out, load(a + c * lanes) * load(b + c * lanes));
}

/// Adds weight (j, lane) * row to out(j, .) for the panel rows that dense_rows::clean leaves out,
/// at their visible keys.
template <class T>
inline void add_nonfinite_rows(const dense_rows<T>& in, int lane, int rows, int64_t columns,
                               const vector_keys& seen, const T* bias, const T* weights, T* out,
                               ptrdiff_t out_stride) {
  if (in.finite) return;
  constexpr int w = width<T>;
  const int lanes = seen.vectors * w;
  for (int r = 0; r < lanes && lane + r < rows; ++r) {
    const T* row = in.rows + (lane + r) * in.stride;
    if (!has_nonfinite(row, in.stride)) continue;
    for (int j = seen.begin[r / w]; j < seen.end[r / w]; ++j) {
      if (bias[j * lanes + r] == masked_score<T>) continue;
      for (int64_t c = 0; c < columns; ++c)
        out[j * out_stride + c] += weights[j * lanes + r] * row[c];
    }
  }
}

}  // namespace
