// SPDX-License-Identifier: BSD-3-Clause
//
// Rows of entmax, whose threshold is known: z = (alpha - 1) (s - threshold) where that is positive,
// weights z^(1 / (alpha - 1)). With u = z^(1 / (alpha - 1) - 1) the gradient of a score is
// u (g - sum u g / sum u), g that of the weight: the mean takes a pass of its own.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/gradient/weights-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"

namespace {

/// z^e of the positive lanes; the others are 0. NaN stays.
template <class T>
[[gnu::noinline]] vec<T> power_of_lanes(vec<T> z, T e) {
  T lanes[width<T>];
  store(lanes, z);
  for (T& x : lanes) {
    if (x > T(0)) x = static_cast<T>(__builtin_pow(static_cast<double>(x), static_cast<double>(e)));
  }
  return load(lanes);
}

/// linear: (alpha - 1) ln 2, so that z is of scores in base 2; square: 1 / (alpha - 1).
struct entmax_gradient {
  template <class T>
  struct of_rows {
    vec<T> reference, remainder, constant, step, factor;
    T power;

    ATTNSCALE_INLINE explicit of_rows(const gradient_lanes<T>& row)
        : reference(load(row.reference)),
          remainder(load(row.remainder)),
          constant(load(row.constant)),
          step(load(row.linear)),
          factor(load(row.factor)),
          power(row.square[0]) {}

    /// The weight and u.
    ATTNSCALE_INLINE vec<T> weigh(vec<T> above, vec<T>& u) const {
      const vec<T> zero = broadcast(T(0)), one = broadcast(T(1));
      const vec<T> z = (above - remainder) * step;
      const vec_mask<T> outside = z <= zero;
      if (xsimd::all(outside)) return u = factor - factor;
      const vec<T> positive = xsimd::select(outside, zero, z);
      vec<T> p = positive;
      u = one;
      if (power == T(2)) p = positive * positive, u = positive;
      if (power != T(1) && power != T(2)) {
        u = power_of_lanes<T>(positive, power - T(1));
        p = u * positive;
      }
      u = xsimd::select(outside, zero, u) * factor;
      return p * factor;
    }

    ATTNSCALE_INLINE vec<T> operator()(vec<T> above, vec<T>, vec<T>& gradient) const {
      vec<T> u;
      const vec<T> p = weigh(above, u);
      gradient = u * (gradient + constant);
      return p;
    }
  };
};

/// u in place of the weights, for the sums of a mean.
struct entmax_slopes {
  template <class T>
  struct of_rows : entmax_gradient::of_rows<T> {
    using entmax_gradient::of_rows<T>::of_rows;

    ATTNSCALE_INLINE vec<T> operator()(vec<T> above, vec<T>, vec<T>& gradient) const {
      vec<T> u;
      this->weigh(above, u);
      gradient = u * gradient;
      return u;
    }
  };
};

/// Whether some raw product of a tile whose keys all rows see is above its row's threshold, or NaN.
template <class T, int N>
inline bool reaches_threshold(const gradient_lanes<T>& row, int keys, const T* products) {
  constexpr int w = width<T>;
  for (int n = 0; n < N; ++n) {
    const vec<T> scale = load(row.scale + n * w), reference = load(row.reference + n * w);
    const vec<T> remainder = load(row.remainder + n * w), zero = broadcast(T(0));
    if (any_large(reference)) return true;  // whose scores are rounded first
    for (int j = 0; j < keys; ++j) {
      const vec<T> x = load(products + (j * N + n) * w);
      if (!xsimd::all(fma(x, scale, -reference) - remainder <= zero)) return true;
    }
  }
  return false;
}

/// total[lane] += x(key, lane) over the keys that each vector sees.
template <class T, int N>
inline void add_over_keys(const vector_keys<N>& seen, const T* x, double* total) {
  constexpr int w = width<T>;
  for (int n = 0; n < N; ++n) {
    vec<T> sum = broadcast(T(0));
    for (int j = seen.begin[n]; j < seen.end[n]; ++j) sum = sum + load(x + (j * N + n) * w);
    add_to_double(total + n * w, sum);
  }
}

}  // namespace
