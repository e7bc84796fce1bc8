// SPDX-License-Identifier: BSD-3-Clause
//
// End of the support of an entmax row. A key at the threshold has zero weight, but the threshold
// has rounding errors. Up to alpha = 2 a weight is at most the distance from the threshold, so
// rounding does not matter. For larger alpha it is a root of that distance, which may be less than
// the spacing of thresholds. Then the support follows from its definition: a key is in it if the
// weights under a threshold at that key add up to less than 1. Distances are taken from the least
// score of the support, whose own distance keeps all its digits.
#pragma once

#include <stdint.h>

#include "kernels/simd/simd.hpp"
#include "kernels/sparse/candidates-inl.hpp"
#include "kernels/sparse/power-inl.hpp"
#include "kernels/sparse/threshold-inl.hpp"

namespace {

/// Distance of x above a threshold that counts as zero weight: the rounding error of the threshold.
inline double edge_error(double alpha) {
  double error = 0;
  with_power(alpha, [&](const auto& power) { error = power.is_slow ? 1e-14 : 1e-15; });
  return error;
}

/// Least score with a weight, its distance from the threshold in x, and its weight.
template <class T>
struct support_edge {
  T least = limits<T>::infinity;
  double distance = 0, weight = 0;
};

/// Finds the edge of a row, alpha > 2, from a list of scores that is complete above it. x: scratch,
/// with room for the list's padding.
template <class T>
class edge_search {
 public:
  edge_search(const candidates<T>& list, double alpha, double unit, double* x)
      : list_(list), alpha_(alpha), unit_(unit), x_(x) {}

  support_edge<T> find(T top) {
    support_edge<T> edge;
    edge.least = least_with_weight(top);
    solve_for_weight(edge);
    return edge;
  }

 private:
  /// x <- distances from a score of those above it.
  void measure_from(T score) {
    for (int64_t i = 0; i < list_.count; ++i) {
      const double above =
          (static_cast<double>(list_.value[i]) - static_cast<double>(score)) * unit_;
      x_[i] = above > 0 ? above : -limits<double>::infinity;
    }
    for (int64_t i = list_.count; i < padded(list_.count); ++i) x_[i] = -limits<double>::infinity;
  }

  power_sums sums_at(double tau) const {
    power_sums sums;
    with_power(alpha_, [&](const auto& power) { sums = sums_above(x_, list_.count, power, tau); });
    return sums;
  }

  bool has_weight(T score) {
    measure_from(score);
    return sums_at(0).mass < 1 - edge_error(alpha_);
  }

  /// Bisects between a score without weight and one with weight.
  T least_with_weight(T top) {
    T low = top, high = top;
    for (int64_t i = 0; i < list_.count; ++i)
      if (list_.value[i] < low) low = list_.value[i];
    if (has_weight(low)) return low;
    for (;;) {
      const T middle = low / 2 + high / 2;
      T below = low, above = high;  // nearest scores on either side of it
      for (int64_t i = 0; i < list_.count; ++i) {
        const T value = list_.value[i];
        if (value <= middle && value > below) below = value;
        if (value > middle && value < above) above = value;
      }
      const T score = below > low ? below : above;
      if (!(score < high)) return high;
      (has_weight(score) ? high : low) = score;
    }
  }

  /// Newton's method on the total weight as a function of the edge's weight p: its slope is between
  /// 1 and the size of the support, while the distance p^(alpha - 1) may underflow.
  void solve_for_weight(support_edge<T>& edge) {
    double equals = 0, above = 0;
    for (int64_t i = 0; i < list_.count; ++i) {
      equals += list_.value[i] == edge.least;
      above += list_.value[i] > edge.least;
    }
    measure_from(edge.least);
    double low = 0, high = 1 / (equals + above), p = high;
    for (int steps = 0; steps < 100; ++steps) {
      const power_sums s = sums_at(-__builtin_pow(p, alpha_ - 1));
      const double excess = equals * p + s.mass - 1;
      (excess >= 0 ? high : low) = p;
      double next = p - excess / (equals + s.slope * __builtin_pow(p, alpha_ - 2));
      if (!(next >= low && next <= high)) next = low + (high - low) / 2;
      const double change = next > p ? next - p : p - next;
      p = next;
      if (change <= 2e-16 * p) break;
    }
    edge.distance = __builtin_pow(p, alpha_ - 1);
    edge.weight = p;
  }

  const candidates<T>& list_;
  double alpha_, unit_;
  double* x_;
};

/// x <- weights with the sum 1, from distances from the threshold. Weights that underflow leave the
/// list.
template <class T>
inline void weigh_list(candidates<T>& list, double* x, double alpha, const support_edge<T>& edge) {
  for (int64_t i = list.count; i < padded(list.count); ++i) x[i] = 0;
  with_power(alpha, [&](const auto& power) {
    for (int64_t i = 0; i < list.count; i += width<double>) {
      const vec<double> d = load(x + i);
      store(x + i, power(d) * d);
    }
  });
  for (int64_t i = 0; i < list.count && alpha > 2; ++i)
    if (list.value[i] == edge.least) x[i] = edge.weight;
  vec<double> sum = broadcast(0.0);
  for (int64_t i = 0; i < list.count; i += width<double>) sum = sum + load(x + i);
  const double share = 1 / sum_of(sum);
  for (int64_t i = 0; i < list.count; ++i) x[i] *= share;
  keep_above(list, x, 0);
}

/// Reduces the list to its support, and x to the weights. tau: the threshold of x, not read for
/// alpha > 2.
template <class T>
inline void entmax_weights(candidates<T>& list, double* x, double alpha, double tau,
                           const support_edge<T>& edge) {
  if (alpha <= 2) {
    keep_above(list, x, tau + edge_error(alpha));
    for (int64_t i = 0; i < list.count; ++i) x[i] -= tau;
    return weigh_list(list, x, alpha, edge);
  }
  for (int64_t i = 0; i < list.count; ++i) {
    const T value = list.value[i];
    const double above = static_cast<double>(value) - static_cast<double>(edge.least);
    x[i] = value < edge.least ? -1 : above * (alpha - 1) + edge.distance;
  }
  keep_above(list, x, -0.5);
  weigh_list(list, x, alpha, edge);
}

}  // namespace
