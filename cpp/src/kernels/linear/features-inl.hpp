// SPDX-License-Identifier: BSD-3-Clause
//
// Rows of queries and keys into the features whose products linear attention sums. Written to a
// tile that stays in the cache, they cost one pass over registers and none over memory.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/exp-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "linear.hpp"

namespace {

using attnscale::detail::feature_map;

template <class T>
constexpr int64_t whole_vectors(int64_t n) {
  return (n + width<T> - 1) / width<T> * width<T>;
}

/// out[c] = f(in[c], c) for a row, a vector at a time; past the last column `fill` is read.
template <class T, class F>
ATTNSCALE_INLINE void map_row(const T* in, int64_t columns, T fill, T* out, F&& f) {
  constexpr int w = width<T>;
  int64_t c = 0;
  for (; c + w <= columns; c += w) store(out + c, f(load(in + c), c));
  if (c == columns) return;
  T rest[w];
  for (int i = 0; i < w; ++i) rest[i] = c + i < columns ? in[c + i] : fill;
  store(out + c, f(load(rest), c));
}

/// e^x for x up to some 80; NaN stays.
template <class T>
ATTNSCALE_INLINE vec<T> natural_exp(vec<T> x) {
  return exp2(clamp_exponent(x * broadcast(T(1.4426950408889634074))));
}

/// elu(x) + 1: x + 1 above 0, e^x below.
template <class T>
ATTNSCALE_INLINE vec<T> elu_plus_one(vec<T> x) {
  const vec<T> zero = broadcast(T(0));
  return natural_exp<T>(min_or(zero, x)) + max_or(zero, x);
}

/// The largest lane of each of width<T> vectors, one after the other.
template <class T>
ATTNSCALE_INLINE vec<T> largest_lanes(vec<T> (&v)[width<T>]) {
  transpose<T>(v);
  vec<T> most = v[0];
  for (int i = 1; i < width<T>; ++i) most = max_or(v[i], most);
  return most;
}

/// e^(x + shift) over the largest of its row: no query overflows, and none vanishes. As many rows
/// at a time as a vector has lanes, because a reduction across lanes takes as long for all of them.
template <class T>
inline void exponentials_of_rows(row_view<T> in, int64_t rows, const T* shift, int64_t columns,
                                 T* out, ptrdiff_t stride) {
  constexpr int w = width<T>;
  for (int64_t r = 0; r < rows; r += w) {
    const int64_t count = rows - r < w ? rows - r : w;
    vec<T> most[w];
    for (int i = 0; i < w; ++i) most[i] = broadcast(-limits<T>::infinity);
    for (int64_t i = 0; i < count; ++i)
      map_row<T>(in.data + (r + i) * in.stride, columns, -limits<T>::infinity,
                 out + (r + i) * stride, [&](vec<T> x, int64_t c) {
                   const vec<T> t = x + load(shift + c);
                   most[i] = max_or(t, most[i]);
                   return t;
                 });
    T top[w];
    store(top, largest_lanes<T>(most));
    for (int64_t i = 0; i < count; ++i) {
      T* const row = out + (r + i) * stride;
      for (int64_t c = 0; c < columns; c += w)
        store(row + c, natural_exp<T>(load(row + c) - broadcast(top[i])));
    }
  }
}

/// Features of `rows` rows; a row of `out` is whole vectors. `shift` (whole vectors) is added to
/// what is exponentiated; `of_row`: relative to the largest of each row.
template <class T>
inline void map_rows(row_view<T> in, int64_t rows, int64_t columns, feature_map map, const T* shift,
                     bool of_row, row_view<T> out_rows) {
  T* out = const_cast<T*>(out_rows.data);
  if (map == feature_map::exponential && of_row)
    return exponentials_of_rows<T>(in, rows, shift, columns, out, out_rows.stride);
  for (int64_t r = 0; r < rows; ++r, out += out_rows.stride) {
    const T* const row = in.data + r * in.stride;
    if (map == feature_map::elu)
      map_row<T>(row, columns, T(0), out, [](vec<T> x, int64_t) { return elu_plus_one<T>(x); });
    else if (map == feature_map::relu)
      map_row<T>(row, columns, T(0), out,
                 [](vec<T> x, int64_t) { return max_or(broadcast(T(0)), x); });
    else
      map_row<T>(row, columns, T(0), out,
                 [&](vec<T> x, int64_t c) { return natural_exp<T>(x + load(shift + c)); });
  }
}

}  // namespace
