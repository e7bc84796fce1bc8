// SPDX-License-Identifier: BSD-3-Clause
//
// Derivatives of the statistics of a row of exponentials by its scores. With p the weight of a key,
// u = ln p and H, v, C the entropy, variance and concentration of the row, they are p times
//   1                      of lse
//   -(u + H)               of the entropy
//   1 + u + H              of the mean score, which is the score less u + H
//   (u + H)^2 - v + 2 (u + H)  of its variance
//   2 (p - C)              of the concentration; that times -1 / C of renyi2
// and [the first key with the largest score] for the largest score; for the largest weight q, that
// times q, less p q. They are sums of term_sums.
#pragma once

#include <array>

#include "attnscale/statistic.hpp"
#include "kernels/gradient/block.hpp"

namespace attnscale::detail {

/// A gradient by a score: p (constant + linear u + square u^2 + weight p), plus at_top at the first
/// key with the largest score.
struct term_sums {
  double constant = 0, linear = 0, square = 0, weight = 0, at_top = 0;
};

/// Statistics of a row and the gradients of a loss by them, by place_of(); 0 if absent.
struct row_statistics {
  double value[statistic_names.size()] = {}, gradient[statistic_names.size()] = {};

  double& of(statistic which) { return gradient[place_of(which)]; }
  double at(statistic which) const { return value[place_of(which)]; }
};

inline void add_lse(row_statistics& row, term_sums& sum) { sum.constant += row.of(statistic::lse); }
inline void add_entropy(row_statistics& row, term_sums& sum) {
  sum.constant -= row.of(statistic::entropy) * row.at(statistic::entropy);
  sum.linear -= row.of(statistic::entropy);
}
inline void add_max_score(row_statistics& row, term_sums& sum) {
  sum.at_top += row.of(statistic::max_score);
}
inline void add_mean_score(row_statistics& row, term_sums& sum) {
  sum.constant += row.of(statistic::mean_score) * (1 + row.at(statistic::entropy));
  sum.linear += row.of(statistic::mean_score);
}
inline void add_score_variance(row_statistics& row, term_sums& sum) {
  const double of = row.of(statistic::score_variance), h = row.at(statistic::entropy);
  sum.constant += of * (h * h + 2 * h - row.at(statistic::score_variance));
  sum.linear += of * (2 * h + 2);
  sum.square += of;
}
/// renyi2 is a function of the concentration, which is added after it.
inline void add_renyi2(row_statistics& row, term_sums&) {
  if (const double of = row.of(statistic::renyi2); of != 0)
    row.of(statistic::concentration) -= of / row.at(statistic::concentration);
}
inline void add_concentration(row_statistics& row, term_sums& sum) {
  const double of = 2 * row.of(statistic::concentration);
  sum.constant -= of * row.at(statistic::concentration);
  sum.weight += of;
}
inline void add_max_weight(row_statistics& row, term_sums& sum) {
  const double of = row.of(statistic::max_weight) * row.at(statistic::max_weight);
  sum.constant -= of;
  sum.at_top += of;
}

/// Contribution of one statistic to the gradients by the scores of a row.
struct statistic_gradient {
  statistic which;
  statistic_set needs;   ///< from the forward pass
  gradient_terms terms;  ///< nonzero terms
  void (*add)(row_statistics& row, term_sums& sum);
};

/// The contributions, in the order in which they are added.
inline constexpr auto statistic_gradients = [] {
  using enum statistic;
  using enum gradient_terms;
  return std::to_array<statistic_gradient>({
      {lse, {}, constant, add_lse},
      {entropy, {entropy}, linear, add_entropy},
      {max_score, {argmax}, constant, add_max_score},
      {mean_score, {entropy}, linear, add_mean_score},
      {score_variance, {entropy, score_variance}, all, add_score_variance},
      {renyi2, {concentration}, all, add_renyi2},
      {concentration, {concentration}, all, add_concentration},
      {max_weight, {max_weight, argmax}, constant, add_max_weight},
  });
}();
static_assert([] {
  statistic_set found{};
  for (const statistic_gradient& each : statistic_gradients)
    found = found | statistic_set{each.which};
  return found == statistics_with(&statistic_traits::has_gradient);
}());

}  // namespace attnscale::detail
