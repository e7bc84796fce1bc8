// SPDX-License-Identifier: BSD-3-Clause
//
// The logarithm, from correctly rounded operations only (+ - * /) in a fixed order: the same bits
// at every level.
#pragma once

#include <stdint.h>

#include "kernels/simd/simd.hpp"

namespace {

/// Unsigned integer as wide as T.
template <class T>
struct unsigned_of;
template <>
struct unsigned_of<float> {
  using type = uint32_t;
};
template <>
struct unsigned_of<double> {
  using type = uint64_t;
};
template <class T>
using bits_t = typename unsigned_of<T>::type;

template <class T, int N>
ATTNSCALE_INLINE vec<T> polynomial(vec<T> x, const T (&c)[N]) {
  vec<T> sum = broadcast(c[N - 1]);
#pragma GCC unroll 16
  for (int k = N - 2; k >= 0; --k) sum = sum * x + broadcast(c[k]);
  return sum;
}

/// (2 atanh(s) / s - 2) / s^2 in s^2, |s| <= 0.172: minimax polynomials (Remez in 60 digits; see
/// docs/explanation/random.md), relative error of 2 atanh 8e-10 and 1e-18.
template <class T>
struct log_terms;

template <>
struct log_terms<float> {
  static constexpr float c[3] = {0x1.55557ap-1f, 0x1.995ed0p-2f, 0x1.31e0dep-2f};
  static constexpr int mantissa = 23;          // bits
  static constexpr uint32_t one = 0x3F800000;  // bits of 1
  static constexpr uint32_t root_half = 0x3F3504F3;
  static constexpr float magic = 0x1p23f;
  static constexpr float bias = 127;
};

template <>
struct log_terms<double> {
  static constexpr double c[7] = {0x1.5555555555592p-1, 0x1.999999997fee9p-2, 0x1.24924941e0c27p-2,
                                  0x1.c71c52164caacp-3, 0x1.74663c53763f6p-3, 0x1.39a1fb9d939f5p-3,
                                  0x1.2f02e5a4c4badp-3};
  static constexpr int mantissa = 52;
  static constexpr uint64_t one = 0x3FF0000000000000;
  static constexpr uint64_t root_half = 0x3FE6A09E667F3BCD;
  static constexpr double magic = 0x1p52;
  static constexpr double bias = 1023;
};

/// y = m 2^exponent with sqrt(1/2) <= m < sqrt(2); log m = 2 atanh(s), s = (m - 1) / (m + 1).
template <class T>
struct log_argument {
  vec<T> s, exponent;
};

/// Log parts of y + rest, for y > 0 normal and |rest| below half a unit in the last place of y.
template <class T>
ATTNSCALE_INLINE log_argument<T> split_log(vec<T> y, vec<T> rest) {
  using terms = log_terms<T>;
  using bits = bits_t<T>;
  const vec<bits> y_bits = as_bits(y), one = broadcast(terms::one);
  const vec<bits> shifted = y_bits + broadcast(static_cast<bits>(terms::one - terms::root_half));
  const vec<bits> exponent = shifted >> terms::mantissa;
  const vec<T> m = from_bits(y_bits - (exponent << terms::mantissa) + one);
  const vec<T> magic = broadcast(terms::magic);
  const vec<T> k = from_bits(exponent | as_bits(magic)) - broadcast(terms::magic + terms::bias);
  const vec<T> f = (m - broadcast(T(1))) + rest;
  return {f / (f + broadcast(T(2))), k};
}

/// -log of a split number.
template <class T>
ATTNSCALE_INLINE vec<T> minus_log(log_argument<T> of) {
  const vec<T> w = of.s * of.s;
  const vec<T> log_m = of.s * (w * polynomial(w, log_terms<T>::c) + broadcast(T(2)));
  return of.exponent * broadcast(T(-0.69314718055994530942)) - log_m;
}

template <class T>
ATTNSCALE_INLINE vec<T> minus_log(vec<T> y, vec<T> rest) {
  return minus_log(split_log(y, rest));
}

}  // namespace
