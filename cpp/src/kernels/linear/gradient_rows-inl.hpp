// SPDX-License-Identifier: BSD-3-Clause
//
// Code shared by both passes of the gradients: rows as whole vectors, sums in two layouts, and
// gradients from features back to elements.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/linear/features-inl.hpp"
#include "kernels/linear/linear_gradient.hpp"
#include "kernels/linear/rows-inl.hpp"
#include "kernels/simd/exp-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/product-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::detail::linear_gradient_block;

/// Sums converted to the type of the products: features x lanes, and transposed.
template <class T>
struct narrow_sums {
  T *products, *turned, *total;
};

template <class T>
struct linear_gradient_workspace : linear_workspace<T> {
  narrow_sums<T> sums;
  T *grad, *raw, *slopes, *faded, *pairs, *clean_rows, *panel, *later, *inverse, *spare;

  linear_gradient_workspace(const linear_form& f, arena& a) : linear_workspace<T>(f, a) {
    const int64_t columns = this->columns, lanes = this->lanes, wide = columns + lanes;
    sums = {a.take<T>(columns * lanes), a.take<T>(lanes * columns), a.take<T>(columns)};
    grad = a.take<T>(linear_rows * lanes);
    raw = a.take<T>(linear_rows * f.head_dim);
    for (T** each : {&slopes, &faded, &clean_rows, &spare})
      *each = a.take<T>(linear_rows * (wide + whole_vectors<T>(f.head_dim)));
    pairs = a.take<T>(linear_rows * linear_rows);
    panel = a.take<T>(linear_rows * wide);
    for (T** each : {&later, &inverse}) *each = a.take<T>(columns);
    this->copy = a.take<T>(width<T> * wide);
  }
};

/// Fills the last vector of each row with 0.
template <class T>
inline void clear_pads(T* rows_of, int64_t rows, int64_t columns, int64_t stride) {
  for (int64_t r = 0; columns < stride && r < rows; ++r)
    for (int64_t c = columns; c < stride; ++c) rows_of[r * stride + c] = T(0);
}

/// Features of rows, or their logarithms, as whole vectors.
template <class T>
inline row_view<T> feature_rows(const matrix& m, const linear_form& form, const double* turn,
                                int64_t row, int64_t rows, T* in, T* out) {
  const int64_t columns = whole_vectors<T>(form.features);
  const row_view<T> x = view_rows(m, row, rows, form.head_dim, in);
  const bool same = form.map == feature_map::given || form.map == feature_map::exponential;
  if (same && form.scale == 1 && form.features == columns && is_direct<T>(m.layout)) return x;
  mapped_rows<T>(x, rows, form, turn ? turn + 2 * row : nullptr, out, columns);
  clear_pads(out, rows, form.features, columns);
  return {out, columns};
}

/// base * base_factor + own * own_factor, each null or features x columns, in both layouts.
template <class T>
inline void narrow_both(const linear_form& form, const double* base, const double* base_factor,
                        const double* own, const double* own_factor, narrow_sums<T>& out) {
  const int64_t features = whole_vectors<T>(form.features),
                lanes = whole_vectors<T>(form.value_dim);
  for (int64_t f = 0; f < features; ++f) {
    T* const to = out.products + f * lanes;
    for (int64_t c = 0; c < lanes; ++c) to[c] = T(0);
    if (f >= form.features) continue;
    const int64_t row = f * form.value_dim;
    const double a = base_factor[f], b = own_factor[f];
    if (base && own)
      for (int64_t c = 0; c < form.value_dim; ++c)
        to[c] = static_cast<T>(base[row + c] * a + own[row + c] * b);
    else if (base || own)
      for (int64_t c = 0; c < form.value_dim; ++c)
        to[c] = static_cast<T>(base ? base[row + c] * a : own[row + c] * b);
  }
  for (int64_t f = 0; f < features; f += width<T>)
    rows_to_lanes(row_view<T>{out.products + f * lanes, lanes}, lanes, out.turned + f, features);
}

/// Turns slopes (of features, or of their logarithms) into those of the elements of rows; `mapped`:
/// features or logarithms, `raw`: elements.
template <class T>
inline row_view<T> slopes_of_elements(const linear_form& form, row_view<T> mapped, row_view<T> raw,
                                      const double* turn, int64_t rows, T* slopes, T* out) {
  constexpr int w = width<T>;
  const int64_t columns = whole_vectors<T>(form.features);
  const vec<T> zero = broadcast(T(0)), one = broadcast(T(1));
  const auto each = [&](auto&& by) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; c += w) {
        T* const at = slopes + r * columns + c;
        store(at, by(load(at), load(mapped.data + r * mapped.stride + c)));
      }
    return row_view<T>{slopes, columns};
  };
  switch (form.map) {
    case feature_map::given:
    case feature_map::exponential:
      if (form.scale == 1) return {slopes, columns};
      return each([&](vec<T> g, vec<T>) { return g * broadcast(static_cast<T>(form.scale)); });
    case feature_map::elu:  // e^x below 0 is the feature itself
      return each([&](vec<T> g, vec<T> phi) { return g * min_or(phi, one); });
    case feature_map::relu:
      return each([&](vec<T> g, vec<T> phi) { return xsimd::select(phi <= zero, zero, g); });
    case feature_map::log_elu:  // e^-log above 0
      return each([&](vec<T> g, vec<T> log) { return g * natural_exp<T>(-max_or(zero, log)); });
    case feature_map::turned:
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < form.head_dim; ++c) {
          const T* const g = slopes + r * columns + c;
          const T sum = g[0] * static_cast<T>(turn[2 * r]) +
                        g[form.head_dim] * static_cast<T>(turn[2 * r + 1]);
          out[r * form.head_dim + c] = raw.data[r * raw.stride + c] <= T(0) ? T(0) : sum;
        }
      return {out, form.head_dim};
    case feature_map::projected:
      break;
  }
  const int64_t stride = form.back_stride;
  product<T, false>({slopes, columns}, {static_cast<const T*>(form.back), form.back_stride},
                    whole_vectors<T>(form.head_dim), rows, form.features, {out, stride});
  for (int64_t r = 0; r < rows; ++r) {
    T sum = T(0);
    for (int64_t f = 0; f < form.features; ++f) sum += slopes[r * columns + f];
    const T twice = static_cast<T>(2 * form.norm_factor) * sum;
    for (int64_t c = 0; c < form.head_dim; ++c)
      out[r * stride + c] -= twice * raw.data[r * raw.stride + c];
  }
  return {out, stride};
}

/// Writes rows to memory of any type and layout.
template <class T>
inline void write_rows(const matrix& to, int64_t row, int64_t rows, int64_t columns,
                       row_view<T> in) {
  void* const data = const_cast<void*>(to.data);
  for (int64_t r = 0; r < rows; ++r) {
    const T* const from = in.data + r * in.stride;
    if (!is_direct<T>(to.layout)) {
      write_row(data, to.layout, row + r, columns, from);
      continue;
    }
    T* const at = static_cast<T*>(data) + (row + r) * to.layout.row;
    for (int64_t c = 0; c < columns; ++c) at[c] = from[c];
  }
}

}  // namespace
