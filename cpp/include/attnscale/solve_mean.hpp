// SPDX-License-Identifier: BSD-3-Clause
//
// solve_scale for rows that share a scale: the mean entropy of a group meets the target.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "attnscale/attention.hpp"
#include "attnscale/describe.hpp"
#include "attnscale/problem.hpp"

namespace attnscale::detail {

/// The search of one group, in double: Newton on ln((highest - H) / (H - lowest)) inside a bracket.
class mean_search {
 public:
  mean_search(double target, double tolerance, double lowest, double highest, double first_trial)
      : target_(target), tolerance_(tolerance), lowest_(lowest), highest_(highest) {
    const bool flat = target >= highest, narrow = target < lowest - tolerance;
    entropy_ = flat || !narrow ? highest : lowest;
    if (flat)
      scale_ = 0;
    else if (narrow || lowest == highest)
      scale_ = infinity;
    if (std::isnan(lowest)) entropy_ = lowest;
    searching_ = std::isnan(scale_) && !std::isnan(lowest);
    trial_ = searching_ ? first_trial : 0;
    aim_ = logit(target, lowest, highest, tolerance);
  }

  bool searching() const { return searching_; }
  double trial() const { return trial_; }

  /// Entry `at` of a scale_solution<double>.
  void write(auto& solution, std::size_t at) const {
    solution.scale.flat(at) = scale_;
    solution.entropy.flat(at) = entropy_;
    solution.lowest.flat(at) = lowest_;
    solution.highest.flat(at) = highest_;
    solution.converged.flat(at) = std::abs(entropy_ - target_) <= tolerance_;
    solution.feasible.flat(at) =
        target_ >= lowest_ - tolerance_ && target_ <= highest_ + tolerance_;
    solution.iterations.flat(at) = steps_;
  }

  /// Takes the mean entropy at the trial, and minus its derivative in ln(scale).
  void step(double mean, double slope) {
    ++steps_;
    const double error = mean - target_, size = std::abs(error);
    if (size < best_) {
      best_ = size;
      scale_ = trial_;
      entropy_ = mean;
    }
    (error > 0 ? low_ : high_) = trial_;
    searching_ = best_ > tolerance_ && high_ > low_ * (1 + 1e-15);
    double guess = newton(mean, slope);
    // Where rounding is all that is left of the entropy, steps would creep.
    if (size > before_ / 2 && std::abs(guess - trial_) < trial_ / 16) guess = not_a_number;
    before_ = size;
    trial_ = searching_ ? inside(guess) : 0;
  }

 private:
  static constexpr double infinity = std::numeric_limits<double>::infinity();
  static constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

  static double logit(double entropy, double lowest, double highest, double inside) {
    return std::log(std::max(highest - entropy, 0.0) / std::max(entropy - lowest, inside / 2));
  }

  double newton(double mean, double slope) const {
    const double above = highest_ - mean, below = mean - lowest_;
    const double step = (std::log(above / below) - aim_) / (slope / above + slope / below);
    return trial_ * std::exp(std::clamp(-step, -3.0, 3.0));
  }

  /// The guess, or the middle of the bracket where it is outside or NaN.
  double inside(double guess) const {
    if (guess > low_ && guess < high_) return guess;
    return low_ == 0 ? trial_ / 8 : std::isinf(high_) ? trial_ * 8 : std::sqrt(low_ * high_);
  }

  double target_, tolerance_, lowest_, highest_;
  double scale_ = not_a_number, entropy_ = 0, trial_ = 0, aim_ = 0;
  double low_ = 0, high_ = infinity, best_ = infinity, before_ = infinity;
  std::int64_t steps_ = 0;
  bool searching_ = false;
};

/// Rows of a call in groups of consecutive ones: each evaluation is one pass over all rows.
template <class T>
class shared_scales {
 public:
  /// Rows that see no key do not count.
  shared_scales(const call_description& call, std::size_t n_groups)
      : call_(call), scales_(n_groups) {
    call.fill(problem_);
    const std::size_t rows = problem_.heads.size() * static_cast<std::size_t>(call.n_queries());
    counts_.resize(rows);
    count_visible(problem_, counts_.data(), call.how());
    entropy_.resize(rows);
    variance_.resize(rows);
    problem_.statistics[statistic::entropy] = entropy_.data();
    problem_.statistics[statistic::score_variance] = variance_.data();
    problem_.scale_row = 0;
    const std::size_t heads_of_group = problem_.heads.size() / std::max<std::size_t>(n_groups, 1);
    for (std::size_t h = 0; h < problem_.heads.size(); ++h)
      problem_.heads[h].scale = &scales_[h / heads_of_group];
  }

  /// Over the counted rows of a group; 0 where there are none.
  double mean(const T* rows, std::size_t group) const {
    const std::size_t n = counts_.size() / scales_.size();
    double total = 0;
    std::int64_t number = 0;
    for (std::size_t row = group * n; row < (group + 1) * n; ++row)
      if (counts_[row] > 0) {
        total += rows[row];
        ++number;
      }
    return total / static_cast<double>(std::max<std::int64_t>(number, 1));
  }

  /// Runs the searches to their ends.
  void search(std::vector<mean_search>& searches) {
    constexpr int most_steps = 100;
    for (int step = 0; step < most_steps; ++step) {
      bool any = false;
      for (std::size_t g = 0; g < searches.size(); ++g) {
        scales_[g] = searches[g].trial();
        any |= searches[g].searching();
      }
      if (!any) return;
      run(problem_, call_.how());
      for (std::size_t g = 0; g < searches.size(); ++g)
        if (searches[g].searching())
          searches[g].step(mean(entropy_.data(), g), mean(variance_.data(), g));
    }
  }

 private:
  const call_description& call_;
  attention_problem problem_;
  std::vector<double> scales_;  // of each group
  std::vector<std::int64_t> counts_;
  std::vector<T> entropy_, variance_;
};

}  // namespace attnscale::detail
