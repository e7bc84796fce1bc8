// SPDX-License-Identifier: BSD-3-Clause
//
// Weights of one row that are zero below a threshold, in double, from a list of the scores that may
// be above it. With x = (alpha - 1)(score - largest score) <= 0 and beta = 1 / (alpha - 1), entmax
// is p = max(x - tau, 0)^beta with tau in [-1, 0] such that sum p = 1 (Peters, Niculae & Martins
// 2019, arXiv 1905.05702); alpha = 2 is sparsemax (Martins & Astudillo 2016).
#pragma once

#include <stdint.h>

#include "kernels/simd/simd.hpp"
#include "kernels/sparse/power-inl.hpp"

namespace {

/// Lists are padded with -infinity to a multiple of this.
constexpr int list_step = 8;

inline int64_t padded(int64_t count) { return (count + list_step - 1) / list_step * list_step; }

/// mass = sum d^beta and slope = sum d^(beta - 1) over d = x - tau > 0.
struct power_sums {
  double mass, slope;
};

inline double sum_of(vec<double> v) {
  double lanes[width<double>];
  store(lanes, v);
  for (int half = width<double> / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

template <class Power>
inline power_sums sums_above(const double* x, int64_t count, const Power& power, double tau) {
  const vec<double> zero = broadcast(0.0), at = broadcast(tau);
  vec<double> mass = zero, slope = zero;
  for (int64_t i = 0; i < padded(count); i += width<double>) {
    const vec<double> d = max_or(load(x + i) - at, zero), share = power(d);
    mass = fma(share, d, mass);
    slope = slope + share;
  }
  return {sum_of(mass), sum_of(slope)};
}

/// Maximum rounding error by which a threshold may be below its lower bound.
constexpr double threshold_error = 1e-12;

/// Newton's step on mass^(alpha - 1) = 1. That function is convex for alpha <= 2, so that steps
/// from the left never overshoot; for equal scores it is a straight line.
inline double newton_step(const power_sums& s, double alpha) {
  const double power = alpha == 2     ? 1
                       : alpha == 1.5 ? __builtin_sqrt(s.mass)
                                      : __builtin_pow(s.mass, 2 - alpha);
  return (s.mass - power) / s.slope;
}

/// The search for one row's threshold, from a start where mass >= 1. Stopped early, it has a lower
/// bound if alpha <= 2. Steps that leave the bracket (alpha > 2) become bisections.
struct threshold_search {
  double low, high = 0, tau;
  int steps = 0;
  bool done = false;

  explicit threshold_search(double start = 0) : low(start), tau(start) {}

  void advance(const power_sums& s, double alpha) {
    (s.mass >= 1 ? low : high) = tau;
    double next = tau + newton_step(s, alpha);
    // Late steps may be slow where the slope is unbounded: then every second one bisects.
    if (!(next >= low && next <= high) || (alpha > 2 && steps > 20 && steps % 2 == 0))
      next = low + (high - low) / 2;
    const double change = next > tau ? next - tau : tau - next;
    tau = next;
    // Steps converge quadratically where the slope is bounded.
    const double enough = alpha < 2 && alpha != 1.5 ? 1e-13 : 2e-16;
    done = ++steps >= most_steps || change <= enough || high - low <= 2e-16;
  }

  static constexpr int most_steps = 200;
};

/// Threshold of a list, or a lower bound of it after some steps. For alpha > 2 it may end above the
/// threshold: next to a key, where the slope is unbounded, steps are small.
inline double entmax_threshold(const double* x, int64_t count, double alpha, double start,
                               int steps) {
  threshold_search search(start);
  with_power(alpha, [&](const auto& power) {
    while (!search.done && search.steps < steps)
      search.advance(sums_above(x, count, power, search.tau), alpha);
  });
  return alpha > 2 ? search.low : search.tau;
}

}  // namespace
