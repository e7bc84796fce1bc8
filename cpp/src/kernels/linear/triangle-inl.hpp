// SPDX-License-Identifier: BSD-3-Clause
//
// Products of pairs of rows of a strip, below the diagonal, and their sums: row i is in sums only
// with rows j <= i, even if it is not finite.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/linear/features-inl.hpp"
#include "kernels/linear/rows-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/product-inl.hpp"
#include "kernels/tile/rows-inl.hpp"

namespace {

template <class T>
ATTNSCALE_INLINE row_view<T> below(row_view<T> view, int64_t row) {
  return {view.data + row * view.stride, view.stride};
}

/// Transposes rows into lanes: panel[c][j]; rows past the last one are 0. `copy`: width x columns.
template <class T>
inline void pack_rows(row_view<T> in, int64_t rows, int64_t columns, T* copy, T* panel) {
  constexpr int w = width<T>;
  for (int64_t j = 0; j < rows; j += w) {
    if (rows - j >= w) {
      rows_to_lanes(below(in, j), columns, panel + j, linear_rows);
      continue;
    }
    for (int64_t r = 0; r < w; ++r)
      for (int64_t c = 0; c < columns; ++c)
        copy[r * columns + c] = j + r < rows ? in.data[(j + r) * in.stride + c] : T(0);
    rows_to_lanes(row_view<T>{copy, columns}, columns, panel + j, linear_rows);
  }
}

/// weights(i, j) = left_i . panel_j for j <= i, 0 beyond.
template <class T>
inline void lower_products(row_view<T> left, const T* panel, int64_t depth, int64_t rows,
                           T* weights) {
  for (int64_t i = 0; i < rows; i += width<T>) {
    // A strip of rows needs the keys up to its last one.
    const int64_t strip = rows - i < width<T> ? rows - i : width<T>;
    const int64_t lanes = i + width<T>;
    product<T, false>(below(left, i), {panel, linear_rows}, lanes, strip, depth,
                      {weights + i * linear_rows, linear_rows});
    // A register block of the next product may reach 11 rows into the next strip.
    const int64_t end = lanes + 12 < linear_rows ? lanes + 12 : linear_rows;
    for (int64_t r = i; r < i + strip; ++r)
      for (int64_t j = r + 1; j < end; ++j) weights[r * linear_rows + j] = T(0);
  }
}

template <class T>
inline bool is_finite(T x) {
  return x - x == T(0);
}

/// Rows with 0 for elements that are not finite: 0 * NaN would reach rows that do not see it.
template <class T>
inline row_view<T> cleaned(row_view<T> in, int64_t rows, int64_t lanes, T* clean) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < lanes; ++c) {
      const T x = in.data[r * in.stride + c];
      clean[r * lanes + c] = is_finite(x) ? x : T(0);
    }
  return {clean, lanes};
}

/// out_i += sum over j <= i of weights(i, j) right_j.
template <class T>
inline void add_lower(const T* weights, row_view<T> right, int64_t lanes, int64_t rows, T* clean,
                      T* out) {
  const bool finite = all_finite<T>(right, rows, lanes);
  product<T, false>({weights, linear_rows}, finite ? right : cleaned(right, rows, lanes, clean),
                    lanes, rows, rows, {out, lanes}, product_part::lower);
  for (int64_t j = 0; !finite && j < rows; ++j)
    for (int64_t c = 0; c < lanes; ++c) {
      const T x = right.data[j * right.stride + c];
      for (int64_t i = j; !is_finite(x) && i < rows; ++i)
        out[i * lanes + c] += weights[i * linear_rows + j] * x;
    }
}

/// out_j += sum over i >= j of weights(i, j) right_i.
template <class T>
inline void add_upper(const T* weights, row_view<T> right, int64_t lanes, int64_t rows, T* clean,
                      T* out) {
  const bool finite = all_finite<T>(right, rows, lanes);
  const row_view<T> from = finite ? right : cleaned(right, rows, lanes, clean);
  for (int64_t lane = 0; lane < lanes; lane += panel_vectors * width<T>) {
    const int64_t left = (lanes - lane) / width<T>;
    with_vectors(left < panel_vectors ? static_cast<int>(left) : panel_vectors, [&](auto vectors) {
      constexpr int n = decltype(vectors)::value;
      for_row_blocks<n>(rows, [&](auto count, int64_t j) {
        constexpr int m = decltype(count)::value;
        vec<T> acc[m][n];
        multiply<T, m, n, true>(weights + j * linear_rows + j, linear_rows,
                                below(from, j).data + lane, from.stride, rows - j, acc);
#pragma GCC unroll 12
        for (int r = 0; r < m; ++r)
#pragma GCC unroll 12
          for (int c = 0; c < n; ++c) {
            T* const o = out + (j + r) * lanes + lane + c * width<T>;
            store(o, load(o) + acc[r][c]);
          }
      });
    });
  }
  for (int64_t i = 0; !finite && i < rows; ++i)
    for (int64_t c = 0; c < lanes; ++c) {
      const T x = right.data[i * right.stride + c];
      for (int64_t j = 0; !is_finite(x) && j <= i; ++j)
        out[j * lanes + c] += weights[i * linear_rows + j] * x;
    }
}

}  // namespace
