// SPDX-License-Identifier: BSD-3-Clause
//
// What the calls of attention.hpp return.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "attnscale/xtensor_compat.hpp"

namespace attnscale {

/// What attention_statistics can report of a row with scores s and weights p. A sink is an outcome
/// of lse, entropy, mean_score, score_variance and concentration, and no key. Normalizers whose
/// weights do not add up to 1 have max_score, n_visible, argmax and max_weight alone.
enum class statistic : std::uint16_t {
  lse = 1,              ///< ln sum exp s
  entropy = 2,          ///< -sum p ln p, in nats
  max_score = 4,        ///< largest score
  mean_score = 8,       ///< sum p s
  score_variance = 16,  ///< sum p (s - mean_score)^2
  concentration = 32,   ///< sum p^2
  n_visible = 64,       ///< keys that the row may see
  argmax = 128,         ///< first key with the largest score, -1 if there is none
  max_weight = 256,     ///< largest p
  sink_weight = 512,    ///< weight of the sink, 0 without one
  support = 1024        ///< keys with a positive weight
};

/// Written {statistic::entropy, statistic::argmax}.
class statistic_set {
 public:
  statistic_set(std::initializer_list<statistic> wanted) {
    for (const statistic each : wanted) bits_ |= static_cast<unsigned>(each);
  }
  bool contains(statistic each) const { return (bits_ & static_cast<unsigned>(each)) != 0; }

 private:
  unsigned bits_ = 0;
};

/// Of a softmax; sink_weight and support are asked for by name.
inline const statistic_set all_statistics{
    statistic::lse,        statistic::entropy,        statistic::max_score,
    statistic::mean_score, statistic::score_variance, statistic::concentration,
    statistic::n_visible,  statistic::argmax,         statistic::max_weight};

/// Arrays of shape (..., heads, n_queries), those that were asked for; output is there if there
/// was a value. A row without keys has lse and max_score -inf, argmax -1 and zeros elsewhere.
template <class T>
struct attention_statistics_result {
  std::optional<xt::xarray<T>> output;  ///< (..., heads, n_queries, value_dim)
  std::optional<xt::xarray<T>> lse, entropy, max_score, mean_score, score_variance, concentration;
  std::optional<xt::xarray<std::int64_t>> n_visible, argmax;
  std::optional<xt::xarray<T>> max_weight, sink_weight;
  std::optional<xt::xarray<std::int64_t>> support;
};

/// Statistics at many scales; arrays (..., heads, n_queries, scales). mean and variance are of
/// q . k under the weights.
template <class T>
struct entropy_curve_result {
  std::vector<double> scales;
  xt::xarray<T> entropy, lse, mean, variance;
};

/// Attention to a part of the keys: all that it takes to merge it with the other parts.
template <class T>
struct attention_state_result {
  xt::xarray<T> output;      ///< (..., heads, n_queries, value_dim)
  xt::xarray<T> lse;         ///< (..., heads, n_queries)
  xt::xarray<T> mean_score;  ///< (..., heads, n_queries)

  /// lse - mean_score, in nats; 0 for a row without keys.
  xt::xarray<T> entropy() const {
    xt::xarray<T> result = lse;
    auto mean = mean_score.begin();
    for (T& h : result) {
      const T difference = h - *mean++;
      h = std::isinf(h) && h < 0 ? T(0) : difference < 0 ? T(0) : difference;  // NaN stays
    }
    return result;
  }
};

}  // namespace attnscale
