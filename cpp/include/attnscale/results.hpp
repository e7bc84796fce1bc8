// SPDX-License-Identifier: BSD-3-Clause
//
// Results of the calls of attention.hpp.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

#include "attnscale/dense_array.hpp"
#include "attnscale/statistic.hpp"

namespace attnscale {

/// Arrays of shape (..., heads, n_queries), only the wanted ones; output if there was a value. A
/// row without keys has lse and max_score -inf, min_score inf, argmax -1 and zeros elsewhere. T is
/// the compute type; the output of 16-bit arrays has their type.
template <class T, class Output = T>
struct attention_statistics_result {
  std::optional<dense_array<Output>> output;  ///< (..., heads, n_queries, value_dim)
  std::optional<dense_array<T>> lse, entropy, max_score, mean_score, score_variance, concentration;
  std::optional<dense_array<std::int64_t>> n_visible, argmax;
  std::optional<dense_array<T>> max_weight, sink_weight;
  std::optional<dense_array<std::int64_t>> support;
  std::optional<dense_array<T>> renyi2, min_score;
};

/// Calls f(statistic, its array) for every statistic of an attention_statistics_result.
template <class Result, class F>
void for_each_statistic(Result& result, F&& f) {
  using enum statistic;
  f(lse, result.lse);
  f(entropy, result.entropy);
  f(max_score, result.max_score);
  f(mean_score, result.mean_score);
  f(score_variance, result.score_variance);
  f(concentration, result.concentration);
  f(n_visible, result.n_visible);
  f(argmax, result.argmax);
  f(max_weight, result.max_weight);
  f(sink_weight, result.sink_weight);
  f(support, result.support);
  f(renyi2, result.renyi2);
  f(min_score, result.min_score);
}

/// Statistics at many scales; arrays (..., heads, n_queries, scales). mean and variance are of
/// q . k under the weights.
template <class T>
struct entropy_curve_result {
  std::vector<double> scales;
  dense_array<T> entropy, lse, mean, variance;
};

/// Attention to a part of the keys, with the numbers for merging it with other parts.
template <class T, class Output = T>
struct attention_state_result {
  dense_array<Output> output;  ///< (..., heads, n_queries, value_dim)
  dense_array<T> lse;          ///< (..., heads, n_queries)
  dense_array<T> mean_score;   ///< (..., heads, n_queries)
  /// Rounding errors of lse and mean_score in T; without axes if unknown.
  dense_array<double> lse_rest{}, mean_rest{};

  /// lse - mean_score, in nats, with both rounding errors; 0 for a row without keys.
  dense_array<T> entropy() const {
    dense_array<T> result = lse;
    for (std::size_t row = 0; row < lse.size(); ++row) {
      const double difference = wide_lse(row) - wide_mean(row);
      T& h = result.flat(row);
      h = has_keys(row) ? static_cast<T>(difference < 0 ? 0 : difference) : T(0);  // NaN stays
    }
    return result;
  }

  /// Whether row `row`, in row-major order, has keys.
  bool has_keys(std::size_t row) const {
    return lse.flat(row) != -std::numeric_limits<T>::infinity();
  }
  double wide_lse(std::size_t row) const { return sum(lse, lse_rest, row); }
  double wide_mean(std::size_t row) const { return sum(mean_score, mean_rest, row); }

  /// Sets lse and mean_score from rows in double, of one shape.
  void set_rows(const dense_array<double>& of_lse, const dense_array<double>& of_mean) {
    split(of_lse, lse, lse_rest);
    split(of_mean, mean_score, mean_rest);
  }

 private:
  static void split(const dense_array<double>& wide, dense_array<T>& rows,
                    dense_array<double>& rest) {
    rows = xt::cast<T>(wide);
    if constexpr (std::is_same_v<T, double>) return;
    rest = wide;
    for (std::size_t row = 0; row < wide.size(); ++row) {
      const T rounded = rows.flat(row);
      rest.flat(row) = std::isfinite(rounded) ? wide.flat(row) - static_cast<double>(rounded) : 0;
    }
  }
  static double sum(const dense_array<T>& rows, const dense_array<double>& rest, std::size_t row) {
    return static_cast<double>(rows.flat(row)) + (rest.dimension() ? rest.flat(row) : 0);
  }
};

}  // namespace attnscale
