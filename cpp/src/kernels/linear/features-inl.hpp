// SPDX-License-Identifier: BSD-3-Clause
//
// From rows of queries and keys to the features of linear attention. Features are written to a tile
// that stays in the cache, without a pass over memory.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/linear/linear.hpp"
#include "kernels/simd/exp-inl.hpp"
#include "kernels/simd/log-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/rows-inl.hpp"

namespace {

using attnscale::detail::feature_map;
using attnscale::detail::linear_norm;

template <class T>
constexpr int64_t whole_vectors(int64_t n) {
  return (n + width<T> - 1) / width<T> * width<T>;
}

/// out[c] = f(in[c], c) for a row, a vector at a time; `fill` is read past the last column.
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

/// e^x for x up to about 80; NaN is kept.
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

/// Largest lane of each of width<T> vectors, in order.
template <class T>
ATTNSCALE_INLINE vec<T> largest_lanes(vec<T> (&v)[width<T>]) {
  transpose<T>(v);
  vec<T> most = v[0];
  for (int i = 1; i < width<T>; ++i) most = max_or(v[i], most);
  return most;
}

/// e^(x + shift) relative to the largest of its row: no query overflows or vanishes. As many rows
/// at a time as a vector has lanes: one reduction across lanes takes as long as one for all of
/// them.
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

/// f(in[c], c) for every element of `rows` rows.
template <class T, class F>
inline void map_rows(row_view<T> in, int64_t rows, int64_t columns, T* out, ptrdiff_t stride,
                     F&& f) {
  for (int64_t r = 0; r < rows; ++r)
    map_row<T>(in.data + r * in.stride, columns, T(0), out + r * stride, f);
}

/// ln(elu(x) + 1): ln(1 + x) above 0, x below. The rounding error of 1 + x is x - ((1 + x) - 1).
template <class T>
ATTNSCALE_INLINE vec<T> log_elu_plus_one(vec<T> x) {
  const vec<T> zero = broadcast(T(0)), one = broadcast(T(1));
  const vec<T> above = max_or(zero, x), sum = one + above;
  // x - x turns infinity and NaN into NaN.
  const vec<T> log = (x - x) - minus_log<T>(sum, above - (sum - one));
  return xsimd::select(x < zero, x, log);
}

/// max(x, 0) times the cosine of the row's angle, then times its sine. The last vector of a row may
/// write beyond its 2 * columns features.
template <class T>
inline void turned_rows(row_view<T> in, int64_t rows, int64_t columns, const double* turn, T* out,
                        ptrdiff_t stride) {
  for (int64_t r = 0; r < rows; ++r)
    for (int half = 0; half < 2; ++half)
      map_row<T>(in.data + r * in.stride, columns, T(0), out + r * stride + half * columns,
                 [by = broadcast(static_cast<T>(turn[2 * r + half]))](vec<T> x, int64_t) {
                   return max_or(broadcast(T(0)), x) * by;
                 });
}

template <class T>
ATTNSCALE_INLINE T sum_of_lanes(vec<T> sum) {
  T lanes[width<T>];
  store(lanes, sum);
  for (int half = width<T> / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

/// Squared norm |x|^2.
template <class T>
inline T square_of_row(const T* x, int64_t columns) {
  constexpr int w = width<T>;
  vec<T> sum = broadcast(T(0));
  int64_t c = 0;
  for (; c + w <= columns; c += w) sum = fma(load(x + c), load(x + c), sum);
  T all = sum_of_lanes<T>(sum);
  for (; c < columns; ++c) all += x[c] * x[c];
  return all;
}

/// Smallest |x|, without zeros unless `zeros`; NaN is ignored.
template <class T>
inline T smallest(row_view<T> in, int64_t rows, int64_t columns, bool zeros) {
  constexpr int w = width<T>;
  const T none = zeros ? T(-1) : T(0);
  const vec<T> infinity = broadcast(limits<T>::infinity), floor = broadcast(none);
  vec<T> least = infinity;
  T all = limits<T>::infinity;
  for (int64_t r = 0; r < rows; ++r) {
    const T* const x = in.data + r * in.stride;
    int64_t c = 0;
    for (; c + w <= columns; c += w) {
      const vec<T> size = xsimd::abs(load(x + c));
      least = min_or(least, xsimd::select(size > floor, size, infinity));
    }
    for (; c < columns; ++c) {
      const T size = x[c] < 0 ? -x[c] : x[c];
      if (size > none && size < all) all = size;
    }
  }
  T lanes[w];
  store(lanes, least);
  for (const T x : lanes) all = x < all ? x : all;
  return all;
}

/// least = min(least, smallest).
template <class T>
inline void note_smallest(double& least, row_view<T> in, int64_t rows, int64_t columns,
                          bool zeros) {
  const T x = smallest<T>(in, rows, columns, zeros);
  least = x < least ? static_cast<double>(x) : least;
}

/// Whether all elements are finite: 0 * x is NaN for the others.
template <class T>
inline bool all_finite(row_view<T> in, int64_t rows, int64_t vectors_of_row) {
  vec<T> sum = broadcast(T(0));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < vectors_of_row; c += width<T>)
      sum = fma(load(in.data + r * in.stride + c), broadcast(T(0)), sum);
  return sum_of_lanes<T>(sum) == T(0);
}

}  // namespace
