// SPDX-License-Identifier: BSD-3-Clause
//
// Rows of queries and keys into the features whose products linear attention sums. Written to a
// tile that stays in the cache, they cost one pass over registers and none over memory.
#pragma once

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

template <class T>
ATTNSCALE_INLINE T largest_lane(vec<T> x) {
  T lanes[width<T>];
  store(lanes, x);
  T most = lanes[0];
  for (const T lane : lanes) most = lane > most ? lane : most;
  return most;
}

/// e^(x + shift) over the largest of its row: no query overflows, and none vanishes.
template <class T>
inline void exponentials_of_row(const T* in, const T* shift, int64_t columns, T* out) {
  vec<T> most = broadcast(-limits<T>::infinity);
  map_row<T>(in, columns, -limits<T>::infinity, out, [&](vec<T> x, int64_t c) {
    const vec<T> t = x + load(shift + c);
    most = max_or(t, most);
    return t;
  });
  const vec<T> top = broadcast(largest_lane<T>(most));
  for (int64_t c = 0; c < columns; c += width<T>)
    store(out + c, natural_exp<T>(load(out + c) - top));
}

/// Features of `rows` rows; a row of `out` is whole vectors. `shift` (whole vectors) is added to
/// what is exponentiated; `of_row`: relative to the largest of each row.
template <class T>
inline void map_rows(row_view<T> in, int64_t rows, int64_t columns, feature_map map, const T* shift,
                     bool of_row, row_view<T> out_rows) {
  T* out = const_cast<T*>(out_rows.data);
  for (int64_t r = 0; r < rows; ++r, out += out_rows.stride) {
    const T* const row = in.data + r * in.stride;
    if (map == feature_map::elu)
      map_row<T>(row, columns, T(0), out, [](vec<T> x, int64_t) { return elu_plus_one<T>(x); });
    else if (map == feature_map::relu)
      map_row<T>(row, columns, T(0), out,
                 [](vec<T> x, int64_t) { return max_or(broadcast(T(0)), x); });
    else if (of_row)
      exponentials_of_row<T>(row, shift, columns, out);
    else
      map_row<T>(row, columns, T(0), out,
                 [&](vec<T> x, int64_t c) { return natural_exp<T>(x + load(shift + c)); });
  }
}

}  // namespace
