// SPDX-License-Identifier: BSD-3-Clause
//
// run(solve_problem): the scale at which a row has a given entropy. The kernels compute the entropy
// and its first two derivatives in ln(scale); this file has the search.
//
// With a the scale, x = q . k, V and K the second and third central moment of a x under the
// weights: dH/d ln a = -V, d2H/d(ln a)2 = -(2 V + K). H falls from ln(visible keys) at a = 0 to
// ln(keys tied at the top). Steps are Halley's on
//   g = ln((highest - H) / (H - lowest)),
// which is close to linear in ln a at both ends: highest - H ~ a^2, H - lowest ~ exp(-a gap). Three
// to five evaluations are usual, against twenty to thirty for bisection.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <utility>

#include "attnscale/problem.hpp"
#include "exact/blocks.hpp"
#include "exact/query_rescaling.hpp"
#include "kernels/numbers.hpp"
#include "kernels/tile/block.hpp"
#include "machine/dispatch.hpp"
#include "machine/scratch.hpp"
#include "machine/thread_pool.hpp"

namespace attnscale {
namespace {

using namespace detail;

/// More evaluations than any known row needed; bisection alone closes a bracket of doubles in about
/// as many.
constexpr int max_evaluations = 100;

/// Maximum memory for kept products of all threads: one vector of queries and 2^18 float keys with
/// AVX-512. A panel for which nothing is left computes them again for each evaluation, which takes
/// twice the time and gives the same bits.
constexpr std::int64_t keep_bytes = std::int64_t{16} << 20;

/// Size up to which the products of a panel stay in the L2 cache.
constexpr std::int64_t cache_bytes = std::int64_t{3} << 18;

/// Entropy of a row at one scale, with the central moments of its scores, in nats.
struct row_point {
  double entropy, variance, third, mean;

  row_point(const solve_sums& s, int r, double center) {
    const double weight = s.weight[r], first = s.first[r] / weight, second = s.second[r] / weight;
    mean = center + first;  // of t, base 2, from the top
    entropy = std::log(weight) - ln2 * mean;
    const double var = std::max(second - first * first, 0.0);
    variance = ln2 * ln2 * var;
    third = ln2 * ln2 * ln2 * (s.third[r] / weight - first * (3 * var + first * first));
  }
};

/// Limits at which a search ends without an answer: the bracket is as narrow as rounding allows, or
/// the scale so small that hidden keys could not be told from visible ones.
struct search_limits {
  double bracket = 0, scale = 0;
};
constexpr search_limits limits_of_float{1e-9, 1e-35}, limits_of_double{4e-16, 1e-300};

/// The search for one row's scale.
class row_search {
 public:
  double scale = 0, entropy = 0, lowest = 0, highest = 0;
  bool converged = false, feasible = false;
  std::int64_t evaluations = 0;

  row_search() = default;
  row_search(double target, double tolerance, const search_limits& limits)
      : target_(target), tolerance_(tolerance), limits_(limits) {}

  /// Settles a row if its products determine the answer, else chooses the first trial.
  void begin(const solve_rows& rows, int r) {
    const double n = rows.count[r];
    if (rows.bad[r] != 0) return fail();
    if (n > 0) lowest = std::log(rows.ties[r]), highest = std::log(n);
    feasible = target_ >= lowest - tolerance_ && target_ <= highest + tolerance_;
    if (target_ >= highest) return settle(0, highest);
    if (target_ < lowest - tolerance_ || lowest == highest) return settle(infinity, lowest);
    // At an end of the range the entropy is reached only in the limit: aim inside.
    aim_ = std::log((highest - target_) / std::max(target_ - lowest, tolerance_ / 2));
    const double mean = rows.first[r] / n;
    const double variance = std::max(rows.second[r] / n - mean * mean, 0.0);
    start(rows.center[r] - rows.top[r] + mean, variance);
  }

  bool searching() const { return trial_ > 0; }
  double trial() const { return trial_; }
  double center() const { return center_; }

  /// Takes the sums at trial(), and either settles or chooses the next trial.
  void absorb(const solve_sums& sums, int r) {
    const row_point point(sums, r, center_);
    ++evaluations;
    const double error = point.entropy - target_;
    if (std::abs(error) < std::abs(entropy - target_)) scale = trial_, entropy = point.entropy;
    if (std::abs(error) <= tolerance_) return settle(trial_, point.entropy);
    (error > 0 ? low_ : high_) = trial_;
    if (evaluations == max_evaluations || high_ <= low_ * (1 + limits_.bracket)) return stop();
    move_to(next(point), point.mean);
  }

 private:
  /// Ends the search for a row with a product that is not finite: it has no entropy.
  void fail() {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    scale = entropy = lowest = highest = nan;
  }

  void settle(double at, double value) {
    scale = at;
    entropy = std::max(value, 0.0);
    converged = std::abs(entropy - target_) <= tolerance_;
    stop();
  }
  void stop() { trial_ = 0; }

  /// First guess, from normal scores with this variance: highest - H = a^2 variance / 2.
  void start(double mean, double variance) {
    entropy = highest;  // the best so far is scale 0
    double guess = std::sqrt(2 * (highest - target_) / variance);
    if (!(guess > 0 && guess < infinity)) guess = 1;
    const double scores = guess * mean + guess * guess * variance;
    center_ = within_reach(log2e * scores);
    trial_ = guess > limits_.scale ? guess : 0;
  }

  double next(const row_point& p) const {
    // Slow steps (rounding as large as the error) must not use up all evaluations.
    if (evaluations >= 12 && evaluations % 2 == 0) return middle();
    const double above = highest - p.entropy, below = p.entropy - lowest;
    const double slope = p.variance / above + p.variance / below;
    const double error = std::log(above / below) - aim_;
    const double curl = (2 * p.variance + p.third) * (1 / above + 1 / below) -
                        p.variance * p.variance * (1 / (above * above) - 1 / (below * below));
    const double halley = 2 * error * slope / (2 * slope * slope - error * curl);
    const double newton = error / slope;
    // Halley's step is used only as a correction of Newton's.
    const double step = halley / newton > 0.25 && halley / newton < 4 ? halley : newton;
    const double guess = trial_ * std::exp(std::clamp(-step, -3.0, 3.0));
    if (guess > low_ && guess < high_) return guess;  // false for NaN
    return middle();
  }

  double middle() const {
    if (low_ == 0) return trial_ / 8;
    return high_ == infinity ? trial_ * 8 : std::sqrt(low_ * high_);
  }

  /// `mean` of t at the last scale moves with the scale.
  void move_to(double guess, double mean) {
    center_ = within_reach(mean * guess / trial_);
    trial_ = guess > limits_.scale && guess < infinity ? guess : 0;
  }

  /// Limit of the center. Where the entropy is the target, the mean of t is at most this far below
  /// the top: H = ln sum 2^t - ln2 mean, and the sum is at least 1. A center further down would
  /// cost the weight at the top its digits.
  double within_reach(double center) const {
    return std::clamp(center, std::max(-127.0, -log2e * std::max(target_, 0.0)), 0.0);
  }

  double target_ = 0, tolerance_ = 0, aim_ = 0;
  search_limits limits_;
  double low_ = 0, high_ = infinity, trial_ = 0, center_ = 0;
};

/// A part of memory that the panels of a call share, taken for the life of this object if it is
/// free.
class reservation {
 public:
  reservation(std::atomic<std::int64_t>& left, std::int64_t bytes) : left_(left), bytes_(bytes) {
    if (left_.fetch_sub(bytes_) < bytes_) left_ += std::exchange(bytes_, 0);
  }
  ~reservation() { left_ += bytes_; }
  reservation(const reservation&) = delete;
  reservation& operator=(const reservation&) = delete;

  explicit operator bool() const { return bytes_ > 0; }

 private:
  std::atomic<std::int64_t>& left_;
  std::int64_t bytes_;
};

/// All rows of one panel.
class panel_search {
 public:
  panel_search(const solve_problem& p, const solve_kernels& kernels, const query_block& rows,
               bool keep, const stop_signal& stop)
      : p_(p),
        kernels_(kernels),
        rows_(rows),
        block_{
            scores_of(p, rows, {0, p.n_keys}, stop),
            {.keep = keep, .found = &found_, .scale = scale_, .center = center_, .sums = &sums_}} {
    block_.scratch = thread_scratch(kernels.scratch(block_));
  }

  void operator()() {
    kernels_.gather(block_);
    const bool wide = p_.compute == element_type::float64;
    const search_limits& limits = wide ? limits_of_double : limits_of_float;
    for (int r = 0; r < rows_.count; ++r) {
      row_[r] = row_search(target(r), p_.tolerance, limits);
      row_[r].begin(found_, r);
    }
    while (ask()) {
      kernels_.evaluate(block_);
      if (block_.stop->requested()) return;
      for (int r = 0; r < rows_.count; ++r)
        if (row_[r].searching()) row_[r].absorb(sums_, r);
    }
    for (int r = 0; r < rows_.count; ++r)
      wide ? write<double>(row_[r], at(r)) : write<float>(row_[r], at(r));
  }

 private:
  std::int64_t at(int r) const { return rows_.head * p_.n_queries + rows_.first + r; }

  double target(int r) const {
    return p_.heads[rows_.head].scale[(rows_.first + r) * p_.scale_row];
  }

  /// Sets the next evaluation; false when every row has its answer.
  bool ask() {
    bool any = false;
    for (int r = 0; r < rows_.count; ++r) {
      scale_[r] = row_[r].trial();
      center_[r] = row_[r].center();
      any = any || row_[r].searching();
    }
    return any;
  }

  template <class T>
  void write(const row_search& row, std::int64_t i) const {
    p_.scale[i] = row.scale;
    static_cast<T*>(p_.entropy)[i] = static_cast<T>(row.entropy);
    static_cast<T*>(p_.lowest)[i] = static_cast<T>(row.lowest);
    static_cast<T*>(p_.highest)[i] = static_cast<T>(row.highest);
    p_.converged[i] = row.converged;
    p_.feasible[i] = row.feasible;
    p_.iterations[i] = row.evaluations;
  }

  const solve_problem& p_;
  const solve_kernels& kernels_;
  const query_block& rows_;
  solve_block block_;
  solve_rows found_;
  solve_sums sums_;
  double scale_[max_block_rows], center_[max_block_rows];
  row_search row_[max_block_rows];
};

void run_in_range(const solve_problem& p, const execution& how) {
  const bool wide = p.compute == element_type::float64;
  const solve_kernels& kernels = active_kernels(p.compute).solve;
  // As many vectors of queries as keep their products in the cache; at least one.
  const std::int64_t vector_bytes =
      std::max<std::int64_t>(p.n_keys, 1) * kernels.lanes * (wide ? 8 : 4);
  const std::int64_t vectors = std::max<std::int64_t>(cache_bytes / vector_bytes, 1);
  const std::int64_t kept_rows =
      std::min<std::int64_t>(vectors * kernels.lanes, kernels.panel_rows);
  const std::int64_t kept_bytes = kept_rows / kernels.lanes * vector_bytes;
  const bool all_keep = kept_bytes <= cache_bytes || asked_threads(how) * kept_bytes <= keep_bytes;
  const std::int64_t panel = all_keep ? kept_rows : kernels.panel_rows;
  const std::int64_t blocks = (p.n_queries + panel - 1) / panel;
  const auto tasks = static_cast<std::int64_t>(p.heads.size()) * blocks;
  std::atomic<std::int64_t> left = keep_bytes;
  parallel_for(tasks, how, [&](std::int64_t task, const stop_signal& stop) {
    const std::int64_t first = (blocks - 1 - task % blocks) * panel;
    const std::int64_t end = std::min(first + panel, p.n_queries);
    const reservation kept(left, all_keep ? 0 : kept_bytes);
    const bool keep = all_keep || kept;
    const std::int64_t step = keep ? kept_rows : panel;
    for (std::int64_t row = first; row < end && !stop.requested(); row += step) {
      const query_block rows(p, task / blocks, row, step);
      panel_search(p, kernels, rows, keep, stop)();
    }
  });
}

}  // namespace

void run(const solve_problem& problem, const execution& how) {
  check_scales(problem);
  query_rescaling rescaling(problem);
  if (!rescaling.needed()) return run_in_range(problem, how);
  solve_problem own = problem;
  rescaling.apply(own);
  run_in_range(own, how);
  rescaling.undo(problem);
}

}  // namespace attnscale
