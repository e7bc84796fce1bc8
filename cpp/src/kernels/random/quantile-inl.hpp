// SPDX-License-Identifier: BSD-3-Clause
//
// The normal quantile function and the truncated normal: one uniform number per element, whatever
// the interval, so that no rejection shifts later numbers.
#pragma once

#include <stdint.h>

#include "kernels/random/quantile_terms.hpp"
#include "kernels/random/random.hpp"
#include "kernels/simd/log-inl.hpp"
#include "kernels/simd/simd.hpp"

namespace {

using attnscale::detail::quantile_terms;

ATTNSCALE_INLINE vec<double> ratio(vec<double> x, const double (&terms)[2][quantile_terms::count]) {
  return polynomial(x, terms[0]) / polynomial(x, terms[1]);
}

/// |z| of the normal quantile z <= 0 of p in (0, 1/2].
ATTNSCALE_INLINE vec<double> quantile_magnitude(vec<double> p) {
  p = max_or(p, broadcast(quantile_terms::smallest));
  const vec<double> q = broadcast(0.5) - p;
  const vec<double> r = xsimd::sqrt(minus_log(p, broadcast(0.0)));
  const vec<double> middle = q * ratio(broadcast(0.180625) - q * q, quantile_terms::center);
  const vec<double> tail = ratio(r - broadcast(1.6), quantile_terms::tail);
  const vec<double> far = ratio(r - broadcast(5.0), quantile_terms::far);
  const vec<double> outer = xsimd::select(r <= broadcast(5.0), tail, far);
  return xsimd::select(q <= broadcast(0.425), middle, outer);
}

/// A standard normal variate in [low, high], from v = distance of a uniform number to the nearer
/// end of (0, 1): the top bit of `side` is 0 for the lower end. The smaller of the probabilities to
/// the left and to the right is inverted, so that both tails have all their digits.
ATTNSCALE_INLINE vec<double> truncated_normal(vec<uint64_t> side, vec<double> v,
                                              const attnscale::detail::variate_block& d) {
  const vec<double> below = broadcast(d.below), above = broadcast(d.above);
  const vec<double> inside = broadcast(d.inside), zero = broadcast(0.0);
  const vec<double> near = pick(side, below, above) + v * inside;
  const vec<double> other = pick(side, above, below) + (broadcast(1.0) - v) * inside;
  const vec<double> z = quantile_magnitude(min_or(near, other));
  const vec<double> left = pick(side, zero - z, z), right = pick(side, z, zero - z);
  const vec<double> found = xsimd::select(near <= other, left, right);
  return min_or(max_or(found, broadcast(d.low)), broadcast(d.high));
}

}  // namespace
