// SPDX-License-Identifier: BSD-3-Clause
//
// d^(beta - 1), beta = 1 / (alpha - 1): the factor of entmax weights d^beta = d^(beta - 1) d. Whole
// and half exponents (alpha = 2, 1.5, 1.2, 3, ...) are products and a square root; others are 2^(p
// log2 d), with a relative error of about 1e-15 (1 + |log d^p|).
#pragma once

#include "kernels/numbers.hpp"
#include "kernels/simd/exp-inl.hpp"
#include "kernels/simd/log-inl.hpp"
#include "kernels/simd/simd.hpp"

namespace {

using attnscale::detail::log2e;

enum class exponent { zero, one, whole, half, any };

/// d^n, n >= 0.
ATTNSCALE_INLINE vec<double> whole_power(vec<double> d, int n) {
  vec<double> result = broadcast(1.0);
  for (; n > 0; n /= 2, d = d * d)
    if (n % 2 != 0) result = result * d;
  return result;
}

/// d^p for d > 0, and 0 for d = 0. `whole`: p, or p - 1/2 if p is a half (then -1 is possible).
template <exponent E>
struct power {
  static constexpr bool is_slow = E == exponent::any;

  double p;
  int whole;

  ATTNSCALE_INLINE vec<double> operator()(vec<double> d) const {
    const vec<double> zero = broadcast(0.0);
    if constexpr (E == exponent::zero) return xsimd::select(d > zero, broadcast(1.0), zero);
    if constexpr (E == exponent::one) return d;
    if constexpr (E == exponent::whole) return whole_power(d, whole);
    if constexpr (E == exponent::half) {
      if (whole >= 0) return xsimd::sqrt(d) * whole_power(d, whole);
      return xsimd::select(d > zero, xsimd::sqrt(d) / d, zero);
    }
    if constexpr (E == exponent::any) {
      const vec<double> t = minus_log(d, zero) * broadcast(-log2e * p);
      return xsimd::select(d > zero, exp2(clamp_exponent(t)), zero);
    }
  }
};

/// Calls f(power of alpha). A beta that is whole up to the rounding of alpha - 1 counts as whole.
template <class F>
inline auto with_power(double alpha, F&& f) {
  const double p = 1 / (alpha - 1) - 1, twice = __builtin_rint(2 * p);
  const double off = 2 * p - twice;
  if ((off < 0 ? -off : off) > 1e-13 * (p + 2) || twice > 1000)
    return f(power<exponent::any>{p, 0});
  const int whole = static_cast<int>(__builtin_floor(twice / 2));
  if (twice != 2.0 * whole) return f(power<exponent::half>{p, whole});
  if (whole == 0) return f(power<exponent::zero>{p, whole});
  if (whole == 1) return f(power<exponent::one>{p, whole});
  return f(power<exponent::whole>{p, whole});
}

}  // namespace
