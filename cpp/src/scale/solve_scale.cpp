// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/solve_scale.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "attnscale/detail/refuse.hpp"

namespace attnscale {
namespace {

using detail::refuse;
using detail::text_of;

/// Refuses options under which entropy need not fall with the scale.
void check_falling_entropy(const attention_options& options) {
  if (options.scale) refuse("solve_scale finds the scale, got also options.scale");
  if (options.softcap)
    refuse("solve_scale takes no softcap: under it entropy need not fall with the scale, got " +
           text_of(*options.softcap));
  require_softmax(options, "solve_scale");
  refuse_tables(options, "solve_scale", "under it entropy need not fall with the scale");
}

/// Refuses a bias, for the same reason; a mask of 0 and hiding numbers only hides keys.
void check_no_bias(const call_arrays& call) {
  if (call.mask_type != mask_kind::additive) return;
  const strided_array mask = call.attn_mask.with_inner(0);
  const element_type type = mask.layout().type;
  const double hiding = detail::hiding_number[static_cast<int>(type)];
  for_each_index(mask.shape(), [&](const extents& index) {
    const double x = detail::number_at(mask.at(index, mask.shape()), type, 0);
    if (x != 0 && !(x <= hiding))
      refuse("attn_mask of solve_scale must hold 0 and -inf only, got " + text_of(x));
  });
}

/// One target per entry of a shape; `axes` names its axes.
std::vector<double> read_targets(const number_or_array<double>& target, const extents& shape,
                                 const char* axes) {
  if (!target) refuse("target_entropy must be a number or an array, got none");
  check_broadcast("target_entropy", strided_array(target.rows(), 0), shape, axes);
  for (const double x : target.rows().numbers)
    if (!(x >= 0) || std::isinf(x))
      refuse("target_entropy must be finite and at least 0, got " + text_of(x));
  return broadcast_rows(target.rows(), shape).numbers;
}

/// Tolerance of a search; 0 means the default.
double tolerance_of(const call_description& call, double tolerance) {
  if (tolerance > 0) return tolerance;
  return call.arrays().compute == element_type::float64 ? 1e-9 : 1e-6;
}

/// Search for one group, in double: Newton on ln((highest - H) / (H - lowest)) inside a bracket.
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

  /// Entry `at` of the results, in double.
  void write(const solve_problem& into, std::size_t at) const {
    into.scale[at] = scale_;
    static_cast<double*>(into.entropy)[at] = entropy_;
    static_cast<double*>(into.lowest)[at] = lowest_;
    static_cast<double*>(into.highest)[at] = highest_;
    into.converged[at] = std::abs(entropy_ - target_) <= tolerance_;
    into.feasible[at] = target_ >= lowest_ - tolerance_ && target_ <= highest_ + tolerance_;
    into.iterations[at] = steps_;
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
    // If the entropy is only rounding, steps would be slow.
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

  /// The guess, or the middle of the bracket if the guess is outside or NaN.
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
  /// Rows that see no key are not counted.
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

  /// Mean over the counted rows of a group; 0 without rows.
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

  /// Runs the searches to the end.
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
  std::vector<double> scales_;  // per group
  std::vector<std::int64_t> counts_;
  std::vector<T> entropy_, variance_;
};

/// Searches the scale of each row, for one target per row.
void search_rows(const call_description& call, const std::vector<double>& targets, double tolerance,
                 solve_problem& problem) {
  call.fill(problem);
  problem.tolerance = tolerance;
  problem.scale_row = 1;
  for (std::size_t h = 0; h < problem.heads.size(); ++h)
    problem.heads[h].scale = targets.data() + static_cast<std::int64_t>(h) * call.n_queries();
  run(problem, call.how());
}

/// Searches the scales of groups of rows. No entropy exceeds infinity: the search of rows for that
/// target finds their limits.
template <class T>
void solve_groups(const call_description& call, const std::vector<double>& targets,
                  double tolerance, const solve_problem& into) {
  const auto n = static_cast<std::size_t>(count_entries(call.rows()));
  std::vector<T> entropy(n), lowest(n), highest(n);
  std::vector<double> scale(n);
  std::vector<std::int64_t> iterations(n);
  const auto converged = std::make_unique<bool[]>(n), feasible = std::make_unique<bool[]>(n);
  solve_problem limits;
  limits.scale = scale.data();
  limits.entropy = entropy.data();
  limits.lowest = lowest.data();
  limits.highest = highest.data();
  limits.converged = converged.get();
  limits.feasible = feasible.get();
  limits.iterations = iterations.data();
  search_rows(call, std::vector<double>(n, std::numeric_limits<double>::infinity()), tolerance,
              limits);
  shared_scales<T> groups(call, targets.size());
  std::vector<mean_search> searches;
  for (std::size_t g = 0; g < targets.size(); ++g)
    searches.emplace_back(targets[g], tolerance, groups.mean(lowest.data(), g),
                          groups.mean(highest.data(), g), call.standard_scale());
  groups.search(searches);
  for (std::size_t g = 0; g < targets.size(); ++g) searches[g].write(into, g);
}

/// Shape of the results, and its axes for messages.
std::pair<extents, const char*> shape_of(const call_description& call,
                                         const solve_request& request) {
  if (!request.per) return {call.rows(), "(..., heads, n_queries)"};
  if (*request.per == scale_per::head) return {call.leading(), "(..., heads)"};
  return {{}, "()"};
}

}  // namespace

extents check_solve(const call_description& call, const solve_request& request) {
  check_falling_entropy(call.options());
  if (request.per) detail::check_enumerator("per", *request.per, scale_per::all);
  if (!(request.tolerance >= 0) || std::isinf(request.tolerance))
    refuse("tolerance must be greater than 0, or 0 for the default, got " +
           text_of(request.tolerance));
  return shape_of(call, request).first;
}

void run_solve(const call_description& call, const solve_request& request, solve_problem& into) {
  const auto [shape, axes] = shape_of(call, request);
  const std::vector<double> targets = read_targets(request.target_entropy, shape, axes);
  check_no_bias(call.arrays());
  const double tolerance = tolerance_of(call, request.tolerance);
  if (!request.per)
    search_rows(call, targets, tolerance, into);
  else if (call.arrays().compute == element_type::float64)
    solve_groups<double>(call, targets, tolerance, into);
  else
    solve_groups<float>(call, targets, tolerance, into);
}

}  // namespace attnscale
