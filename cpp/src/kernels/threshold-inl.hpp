// SPDX-License-Identifier: BSD-3-Clause
//
// Weights of one row that are zero below a threshold, in double, from a list of the scores that
// may be above it. With x = (alpha - 1)(score - largest score) <= 0 and beta = 1 / (alpha - 1),
// entmax is p = max(x - tau, 0)^beta with tau in [-1, 0] such that sum p = 1 (Peters, Niculae &
// Martins 2019, arXiv 1905.05702); alpha = 2 is sparsemax (Martins & Astudillo 2016).
#pragma once

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

/// beta = 1 (Squared false: the slope counts) or 2, a vector at a time.
template <bool Squared>
inline power_sums vector_sums(const double* x, int64_t count, double tau) {
  const vec<double> zero = broadcast(0.0), one = broadcast(1.0), at = broadcast(tau);
  vec<double> mass = zero, slope = zero;
  for (int64_t i = 0; i < padded(count); i += width<double>) {
    const vec<double> d = max_or(load(x + i) - at, zero);
    mass = Squared ? fma(d, d, mass) : mass + d;
    slope = slope + (Squared ? d : xsimd::select(d > zero, one, zero));
  }
  return {sum_of(mass), sum_of(slope)};
}

inline power_sums sums_above(const double* x, int64_t count, double alpha, double tau) {
  if (alpha == 2) return vector_sums<false>(x, count, tau);
  if (alpha == 1.5) return vector_sums<true>(x, count, tau);
  power_sums sums{0, 0};
  for (int64_t i = 0; i < count; ++i) {
    const double d = x[i] - tau;
    if (!(d > 0)) continue;
    const double slope = __builtin_pow(d, 1 / (alpha - 1) - 1);
    sums.slope += slope;
    sums.mass += slope * d;
  }
  return sums;
}

/// Newton's step on mass^(alpha - 1) = 1. That function is convex where alpha <= 2, so that steps
/// from the left never overshoot; for equal scores it is a straight line.
inline double newton_step(const power_sums& s, double alpha) {
  const double power = alpha == 2     ? 1
                       : alpha == 1.5 ? __builtin_sqrt(s.mass)
                                      : __builtin_pow(s.mass, 2 - alpha);
  return (s.mass - power) / s.slope;
}

/// The threshold, from a start where mass >= 1. After fewer steps than it takes it is a lower bound
/// of it where alpha <= 2. Steps that leave the bracket (alpha > 2) are halvings of it.
inline double entmax_threshold(const double* x, int64_t count, double alpha, double start,
                               int steps) {
  double low = start, high = 0, tau = low;
  for (int i = 0; i < steps; ++i) {
    const power_sums s = sums_above(x, count, alpha, tau);
    (s.mass >= 1 ? low : high) = tau;
    double next = tau + newton_step(s, alpha);
    // Late steps may crawl where the slope is unbounded: then every second one halves.
    if (!(next >= low && next <= high) || (alpha > 2 && i > 20 && i % 2 == 0))
      next = low + (high - low) / 2;
    const double change = next > tau ? next - tau : tau - next;
    tau = next;
    if (change <= 2e-16 || high - low <= 2e-16) break;
  }
  return tau;
}

/// x <- weights with the sum 1, from scores above the threshold.
inline void entmax_weights(double* x, int64_t count, double alpha, double tau) {
  const double beta = 1 / (alpha - 1);
  for (int64_t i = 0; i < count; ++i) x[i] -= tau;
  if (alpha == 1.5)
    for (int64_t i = 0; i < count; ++i) x[i] *= x[i];
  else if (alpha != 2)
    for (int64_t i = 0; i < count; ++i) x[i] = __builtin_pow(x[i], beta);
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += x[i];
  const double share = 1 / total;
  for (int64_t i = 0; i < count; ++i) x[i] *= share;
}

}  // namespace
