// SPDX-License-Identifier: BSD-3-Clause
//
// Building blocks of linear attention: the product of two matrices, whose rows may end at a
// diagonal, and the arrays of a block of rows.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/linear/features-inl.hpp"
#include "kernels/linear/linear.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/product-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::detail::linear_block;
using attnscale::detail::linear_form;

/// Rows per block: the fewest that fill the products' registers at every level.
constexpr int linear_rows = 64;

/// Per row of a strip: sums of log-decays, and exponentials of the remaining decay.
template <class T>
struct fade_arrays {
  double* past;
  T *since, *until, *pairs;
};

/// Part of `a` in a product: all of it, or the lower triangle, whose product is added to `out`.
enum class product_part : bool { all, lower };

/// out(i, lane) = sum over k < depth of a(i, k) * b(k, lane) for the first `lanes` lanes. For a
/// lower triangle k ends with the rows of a register block, beyond the diagonal, where a is 0.
template <class T, bool Transposed>
inline void product(row_view<T> a, row_view<T> b, int64_t lanes, int64_t rows, int64_t depth,
                    row_view<T> out_rows, product_part part = product_part::all) {
  const bool lower = part == product_part::lower;
  T* const out = const_cast<T*>(out_rows.data);
  for (int64_t lane = 0; lane < lanes; lane += panel_vectors * width<T>) {
    const int64_t left = (lanes - lane) / width<T>;
    with_vectors(left < panel_vectors ? static_cast<int>(left) : panel_vectors, [&](auto vectors) {
      constexpr int n = decltype(vectors)::value;
      for_row_blocks<n>(rows, [&](auto count, int64_t i) {
        constexpr int m = decltype(count)::value;
        vec<T> acc[m][n];
        multiply<T, m, n, Transposed>(a.data + (Transposed ? i : i * a.stride), a.stride,
                                      b.data + lane, b.stride, lower ? i + m : depth, acc);
#pragma GCC unroll 12
        for (int r = 0; r < m; ++r)
#pragma GCC unroll 12
          for (int c = 0; c < n; ++c) {
            T* const o = out + (i + r) * out_rows.stride + lane + c * width<T>;
            store(o, lower ? load(o) + acc[r][c] : acc[r][c]);
          }
      });
    });
  }
}

/// log phi = x W - norm_factor |x|^2 - shift.
template <class T>
inline void projected_rows(row_view<T> in, int64_t rows, const linear_form& form, int64_t columns,
                           T* out) {
  product<T, false>(in, {static_cast<const T*>(form.projection), form.projection_stride}, columns,
                    rows, form.head_dim, {out, columns});
  for (int64_t r = 0; r < rows; ++r) {
    const T norm = square_of_row<T>(in.data + r * in.stride, form.head_dim);
    const vec<T> less = broadcast(static_cast<T>(form.norm_factor * norm + form.shift));
    for (int64_t c = 0; c < columns; c += width<T>)
      store(out + r * columns + c, load(out + r * columns + c) - less);
  }
}

/// Features of rows, or their logarithms.
template <class T>
inline void mapped_rows(row_view<T> x, int64_t rows, const linear_form& form, const double* turn,
                        T* out, ptrdiff_t stride) {
  const auto each = [&](auto&& f) {
    map_rows<T>(x, rows, form.head_dim, out, stride, [&](vec<T> v, int64_t) { return f(v); });
  };
  switch (form.map) {
    case feature_map::elu:
      return each([](vec<T> v) { return elu_plus_one<T>(v); });
    case feature_map::relu:
      return each([](vec<T> v) { return max_or(broadcast(T(0)), v); });
    case feature_map::turned:
      return turned_rows<T>(x, rows, form.head_dim, turn, out, stride);
    case feature_map::log_elu:
      return each([](vec<T> v) { return log_elu_plus_one<T>(v); });
    case feature_map::projected:
      return projected_rows<T>(x, rows, form, stride, out);
    case feature_map::given:
    case feature_map::exponential:
      return each([&](vec<T> v) { return v * broadcast(static_cast<T>(form.scale)); });
  }
}

/// Rows as whole vectors, padded with 0; in place if possible.
template <class T>
inline row_view<T> whole_rows(const matrix& m, int64_t row, int64_t rows, int64_t columns, T* out) {
  const int64_t stride = whole_vectors<T>(columns);
  if (columns == stride && is_direct<T>(m.layout)) return view_rows(m, row, rows, columns, out);
  for (int64_t r = 0; r < rows; ++r) {
    read_row(m, row + r, columns, out + r * stride);
    for (int64_t c = columns; c < stride; ++c) out[r * stride + c] = T(0);
  }
  return {out, stride};
}

template <class T>
struct linear_workspace {
  int64_t lanes;    ///< per row of values, whole vectors
  int64_t columns;  ///< per row of features, whole vectors
  T *products, *added, *total, *running, *factor, *query_shift, *key_shift, *limit, *joint;
  T *query_in, *key_in, *query_rows, *key_rows, *query, *key;
  T *value, *clean, *out, *sums, *keys, *weights, *copy;
  double *base_factor, *own_factor;
  fade_arrays<T> fades;

  linear_workspace(const linear_form& f, arena& a)
      : lanes(whole_vectors<T>(f.value_dim)), columns(whole_vectors<T>(f.features)) {
    products = a.take<T>(f.features * lanes);
    added = a.take<T>(f.features * lanes);
    for (T** each : {&total, &running, &factor, &query_shift, &key_shift, &limit, &joint})
      *each = a.take<T>(columns);
    for (T** each : {&query_in, &key_in}) *each = a.take<T>(linear_rows * f.head_dim);
    // A row of `turned` may be written beyond its features.
    for (T** each : {&query_rows, &key_rows, &query, &key})
      *each = a.take<T>(linear_rows * columns + width<T>);
    for (T** each : {&value, &clean, &out}) *each = a.take<T>(linear_rows * lanes);
    sums = a.take<T>(linear_rows);
    keys = a.take<T>(f.features * linear_rows);
    weights = a.take<T>(linear_rows * linear_rows);
    copy = a.take<T>(width<T> * f.features);
    for (double** each : {&base_factor, &own_factor}) *each = a.take<double>(f.features);
    fades = {a.take<double>(linear_rows), a.take<T>(linear_rows), a.take<T>(linear_rows),
             a.take<T>(linear_rows)};
  }
};

}  // namespace
