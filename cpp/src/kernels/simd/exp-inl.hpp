// SPDX-License-Identifier: BSD-3-Clause
//
// 2^t and tanh on vectors. Softmax runs in base 2: scores are scaled by log2(e) once, so that range
// reduction is a rounding and needs no split constant ln 2.
#pragma once

#include "kernels/simd/simd.hpp"

namespace {

/// Coefficients of the relative minimax polynomial of 2^f on [-1/2, 1/2], constant term 1
/// (Remez in 60 digits; see docs/explanation/numerics.md). With rounded coefficients its error is
/// 1.6e-8 and 2.6e-17, below the rounding of the evaluation.
template <class T>
struct exp2_terms;

template <>
struct exp2_terms<float> {
  static constexpr int count = 6;
  static constexpr float c[count] = {0x1.62e430p-1f, 0x1.ebfbdap-3f,  0x1.c6aed4p-5f,
                                     0x1.3b2dbcp-7f, 0x1.5f456ap-10f, 0x1.41d334p-13f};
  static constexpr float magic = 12582912.0f + 127.0f;  // 1.5 * 2^23 + exponent bias
  static constexpr float lowest = -127.0f;              // 2^lowest is returned as 0
};

template <>
struct exp2_terms<double> {
  static constexpr int count = 11;
  static constexpr double c[count] = {
      0.69314718055994533046,   0.24022650695910156205,   0.055504108664819921483,
      0.0096181291075883350833, 0.0013333558146789950323, 0.00015403530462514613026,
      1.52527334909608e-05,     1.3215433089594629037e-6, 1.0178198033328527662e-7,
      7.0741056262456593708e-9, 4.4352809446103361611e-10};
  static constexpr double magic = 6755399441055744.0 + 1023.0;  // 1.5 * 2^52 + exponent bias
  static constexpr double lowest = -1023.0;
};

/// t clamped below at the exponent where exp2 returns 0; NaN is kept.
template <class T>
ATTNSCALE_INLINE vec<T> clamp_exponent(vec<T> t) {
  return max_or(broadcast(exp2_terms<T>::lowest), t);
}

/// Parts of 2^t = power * (1 + q * f), |q * f| < 0.42.
template <class T>
struct exp2_parts {
  vec<T> power, q, f;
};

/// Evaluation of polynomials: fused if the level has it, or with the same bits at every level.
struct fused {
  template <class V>
  static ATTNSCALE_INLINE V apply(V a, V b, V c) {
    return fma(a, b, c);
  }
};
struct two_roundings {
  template <class V>
  static ATTNSCALE_INLINE V apply(V a, V b, V c) {
    return a * b + c;
  }
};

template <class MultiplyAdd = fused, class T>
ATTNSCALE_INLINE exp2_parts<T> split_exp2(vec<T> t) {
  using terms = exp2_terms<T>;
  const vec<T> shifted = t + broadcast(terms::magic);
  const vec<T> f = t - (shifted - broadcast(terms::magic));
  vec<T> q = broadcast(terms::c[terms::count - 1]);
#pragma GCC unroll 16
  for (int k = terms::count - 2; k >= 0; --k) q = MultiplyAdd::apply(q, f, broadcast(terms::c[k]));
  return {exponent_from_mantissa(shifted), q, f};
}

/// 2^t for t = clamp_exponent(t) <= 120; exactly 0 from 2^-126.5 (2^-1022.5) down, 1 at 0.
template <class MultiplyAdd = fused, class T>
ATTNSCALE_INLINE vec<T> exp2(vec<T> t) {
  const exp2_parts<T> e = split_exp2<MultiplyAdd>(t);
  return MultiplyAdd::apply(e.q, e.f, broadcast(T(1))) * e.power;
}

/// tanh y = -m / (m + 2), m = e^(-2|y|) - 1 without cancellation for small |y|; NaN is kept.
template <class T>
ATTNSCALE_INLINE vec<T> tanh(vec<T> y) {
  const T minus_two_log2e = T(-2.8853900817779268147);
  const vec<T> t = clamp_exponent(xsimd::abs(y) * broadcast(minus_two_log2e));
  const exp2_parts<T> e = split_exp2(t);
  const vec<T> m = fma(e.power, e.q * e.f, e.power - broadcast(T(1)));
  const vec<T> magnitude = -m / (m + broadcast(T(2)));
  return xsimd::select(y < broadcast(T(0)), -magnitude, magnitude);
}

/// 1 - tanh(y)^2 = 4 e / (1 + e)^2, e = e^(-2|y|), without cancellation; NaN is kept.
template <class T>
ATTNSCALE_INLINE vec<T> tanh_slope(vec<T> y) {
  const T minus_two_log2e = T(-2.8853900817779268147);
  const vec<T> e = exp2(clamp_exponent(xsimd::abs(y) * broadcast(minus_two_log2e)));
  const vec<T> one_more = e + broadcast(T(1));
  return broadcast(T(4)) * e / (one_more * one_more);
}

}  // namespace
