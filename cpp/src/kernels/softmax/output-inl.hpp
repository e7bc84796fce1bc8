// SPDX-License-Identifier: BSD-3-Clause
//
// The unnormalised output of one panel, [channel][lane]. It is rescaled when the reference moves,
// carried over into a compensated pair of buffers so that its error does not grow with the number
// of keys, and written out as rows.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/simd.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/rows-inl.hpp"

namespace {

/// Tiles between two carries: the sum in `recent` has at most this many roundings.
constexpr int tiles_per_carry = 32;

/// recent: the last tiles. total + compensation: everything before, with the rounding errors of the
/// total as compensation (two-sum). total is null if the keys are too few to need it.
template <class T>
struct output_panel {
  T* recent;
  T* total;
  T* compensation;
  int64_t elements;  ///< value_dim * lanes
};

template <class T>
inline void clear(T* x, int64_t elements) {
  for (int64_t i = 0; i < elements; i += width<T>) store(x + i, broadcast(T(0)));
}

template <class T>
inline void scale_lanes(T* x, int64_t elements, int vectors, const vec<T>* factor) {
  constexpr int w = width<T>;
  for (int n = 0; n < vectors; ++n)
    for (int64_t i = n * w; i < elements; i += vectors * w) store(x + i, load(x + i) * factor[n]);
}

template <class T>
inline void scale_output(const output_panel<T>& out, int vectors, const vec<T>* factor) {
  scale_lanes(out.recent, out.elements, vectors, factor);
  if (!out.total) return;
  scale_lanes(out.total, out.elements, vectors, factor);
  scale_lanes(out.compensation, out.elements, vectors, factor);
}

/// total + compensation += recent; recent = 0. Knuth's two-sum keeps the rounding error of the
/// addition.
template <class T>
inline void carry(const output_panel<T>& out) {
  for (int64_t i = 0; i < out.elements; i += width<T>) {
    const vec<T> a = load(out.total + i), b = load(out.recent + i);
    const vec<T> sum = a + b;
    const vec<T> b_seen = sum - a;
    const vec<T> lost = (a - (sum - b_seen)) + (b - b_seen);
    store(out.total + i, sum);
    store(out.compensation + i, load(out.compensation + i) + lost);
    store(out.recent + i, broadcast(T(0)));
  }
}

/// recent += total + compensation; if the total overflowed, its compensation is NaN and is ignored.
template <class T>
inline void gather(const output_panel<T>& out) {
  if (!out.total) return;
  carry(out);
  for (int64_t i = 0; i < out.elements; i += width<T>) {
    const vec<T> total = load(out.total + i), lost = load(out.compensation + i);
    store(out.recent + i, xsimd::select(lost == lost, total + lost, total));
  }
}

/// Whether v holds NaN or infinity: only these make x * 0 different from 0.
template <class T>
inline bool has_nonfinite(const T* v, int64_t count) {
  const vec<T> zero = broadcast(T(0));
  vec<T> check = zero;
  int64_t c = 0;
  for (; c + width<T> <= count; c += width<T>) check = fma(load(v + c), zero, check);
  T rest = T(0);
  for (; c < count; ++c) rest += v[c] * T(0);
  return rest != T(0) || any<T>(differ(check, zero));
}

/// Whether a tile holds NaN or infinity. ahead: prefetch distance in elements, 0 for none.
template <class T>
inline bool any_nonfinite(row_view<T> value, int keys, int64_t columns, ptrdiff_t ahead) {
  constexpr int w = width<T>, line = static_cast<int>(64 / sizeof(T));
  const vec<T> zero = broadcast(T(0));
  vec<T> check[4] = {zero, zero, zero, zero};
  T rest = T(0);
  for (int j = 0; j < keys; ++j) {
    const T* v = value.data + j * value.stride;
    if (ahead != 0)
      for (int64_t c = 0; c < columns; c += line) __builtin_prefetch(v + ahead + c);
    int64_t c = 0;
    for (; c + 4 * w <= columns; c += 4 * w)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) check[i] = fma(load(v + c + i * w), zero, check[i]);
    for (; c + w <= columns; c += w) check[0] = fma(load(v + c), zero, check[0]);
    for (; c < columns; ++c) rest += v[c] * T(0);
  }
  const vec<T> all = (check[0] + check[1]) + (check[2] + check[3]);
  return rest != T(0) || any<T>(differ(all, zero));
}

/// Adds weight * value for the rows of a tile that hold NaN or infinity, lane by lane: a plain
/// product would carry 0 * NaN into lanes that do not see the key. Returns the tile for the plain
/// product: unchanged without such rows, else a copy with those rows zeroed.
template <class T>
inline row_view<T> isolate_nonfinite(row_view<T> value, int keys, int64_t value_dim,
                                     const vector_keys& seen, const T* bias, const T* weights,
                                     T* out, T* copy) {
  constexpr int w = width<T>;
  const int lanes = seen.vectors * w;
  bool copied = false;
  for (int j = 0; j < keys; ++j) {
    const T* v = value.data + j * value.stride;
    if (!has_nonfinite(v, value_dim)) continue;
    for (int r = 0; r < lanes; ++r) {
      const bool sees =
          seen.begin[r / w] <= j && j < seen.end[r / w] && bias[j * lanes + r] != masked_score<T>;
      for (int64_t c = 0; sees && c < value_dim; ++c)
        out[c * lanes + r] += weights[j * lanes + r] * v[c];
    }
    for (int i = 0; !copied && i < keys; ++i)
      for (int64_t c = 0; c < value_dim; ++c)
        copy[i * value_dim + c] = value.data[i * value.stride + c];
    copied = true;
    for (int64_t c = 0; c < value_dim; ++c) copy[j * value_dim + c] = T(0);
  }
  return copied ? row_view<T>{copy, value_dim} : value;
}

}  // namespace
