// SPDX-License-Identifier: BSD-3-Clause
//
// run(score_rows_problem) and max_cosine: rows become kernel calls. A short row is one call; a long
// one is split into fixed ranges of keys whose sums are merged in order.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attnscale/detail/refuse.hpp"
#include "attnscale/montecarlo.hpp"
#include "experiments/montecarlo_checks.hpp"
#include "kernels/level.hpp"
#include "kernels/numbers.hpp"
#include "kernels/random/random.hpp"
#include "machine/scratch.hpp"
#include "machine/thread_pool.hpp"

namespace attnscale {
namespace {

using namespace detail;

/// Keys per kernel call, a multiple of a tile.
constexpr std::int64_t range_keys = std::int64_t{1} << 18;

/// Clamps rounding errors below 0; NaN is kept (std::max(0.0, NaN) is 0).
double at_least_zero(double x) { return x <= 0 ? 0 : x; }
double at_most_one(double x) { return x >= 1 ? 1 : x; }

/// Sums of a range and the extremes of its random scores.
struct range_sums {
  std::vector<simulated_sums> sums;
  float least = infinity;
  float most = -infinity;
};

/// Moves sums to a larger reference and another center.
void move(simulated_sums& s, double reference, double center) {
  const double shift = s.reference - reference, step = center - s.center;
  const double power = std::exp2(shift);
  s.score_second = power * (s.score_second - 2 * step * s.score_first + step * step * s.weight);
  s.score_first = power * (s.score_first - step * s.weight);
  s.first = power * (s.first + shift * s.weight);
  s.squares *= power * power;
  s.value *= power;
  s.weight *= power;
  s.reference = reference;
  s.center = center;
}

void merge(simulated_sums& into, simulated_sums from) {
  const simulated_sums& heavy = into.reference >= from.reference ? into : from;
  const double reference = heavy.reference, center = heavy.center;
  move(into, reference, center);
  move(from, reference, center);
  into.weight += from.weight;
  into.first += from.first;
  into.squares += from.squares;
  into.value += from.value;
  into.score_first += from.score_first;
  into.score_second += from.score_second;
}

/// Parameters of a row's scores.
struct row_scores {
  double offset, scale;
  float needle;
};

class simulation {
 public:
  explicit simulation(const score_rows_problem& p)
      : p_(p),
        table_(active_kernels()),
        kind_(kind_of(p)),
        has_needle_(!std::isnan(p.needle_cosine)) {
    for (const double multiplier : p.multipliers)
      factors_.push_back(static_cast<float>(multiplier * log2e));
  }

  /// One row on one thread.
  void simulate(std::int64_t row, range_sums& all, row_scores& made,
                const stop_signal& stop) const {
    made = scores_of(row);
    range(row, 0, p_.n, made, all, stop);
  }

  /// One row on all threads.
  void simulate(std::int64_t row, range_sums& all, row_scores& made, const execution& how) const {
    made = scores_of(row);
    std::vector<range_sums> parts(static_cast<std::size_t>(blocks_of(p_.n, range_keys)));
    parallel_for(static_cast<std::int64_t>(parts.size()), how,
                 [&](std::int64_t task, const stop_signal& stop) {
                   const std::int64_t begin = task * range_keys;
                   range(row, begin, std::min(range_keys, p_.n - begin), made,
                         parts[static_cast<std::size_t>(task)], stop);
                 });
    all = std::move(parts.front());
    for (std::size_t i = 1; i < parts.size(); ++i) {
      all.least = std::min(all.least, parts[i].least);
      all.most = std::max(all.most, parts[i].most);
      for (std::size_t k = 0; k < all.sums.size(); ++k) merge(all.sums[k], parts[i].sums[k]);
    }
  }

  void finish(const range_sums& all, const row_scores& made, score_row* out) const {
    for (std::size_t k = 0; k < factors_.size(); ++k) out[k] = finish_one(all, made, k);
  }

 private:
  static score_kind kind_of(const score_rows_problem& p) {
    if (p.model != score_model::sphere) return score_kind::normal;
    return p.head_dim == 1 ? score_kind::sign : score_kind::sphere;
  }

  row_scores scores_of(std::int64_t row) const {
    const double root = std::sqrt(static_cast<double>(p_.head_dim));
    const double cosine = has_needle_ ? p_.needle_cosine : 0;
    if (p_.model == score_model::sphere) return {0, root, static_cast<float>(root * cosine)};
    if (p_.model == score_model::gaussian) return {0, 1, static_cast<float>(root * cosine)};
    const auto [norm, common] = query_of(row);
    return {std::sqrt(p_.correlation) * norm / root * common,
            std::sqrt(1 - p_.correlation) * norm / root, static_cast<float>(norm * cosine)};
  }

  /// |q|, and q . m / |q|, which is a standard normal number for any q.
  std::pair<double, double> query_of(std::int64_t row) const {
    const std::int64_t size = group_elements<float>, groups = blocks_of(p_.head_dim + 1, size);
    std::vector<float> normals(static_cast<std::size_t>(groups * size));
    fill_block block{{p_.from, purpose::query},
                     {distribution::normal, 0, 1, 0, 0, 0, 0, 0},
                     static_cast<std::uint64_t>(row) * static_cast<std::uint64_t>(groups),
                     groups,
                     normals.data()};
    table_.float32.fill(block);
    double square = 0;
    for (std::int64_t i = 0; i < p_.head_dim; ++i) {
      const double x = normals[static_cast<std::size_t>(i)];
      square += x * x;
    }
    return {std::sqrt(square), normals[static_cast<std::size_t>(p_.head_dim)]};
  }

  void range(std::int64_t row, std::int64_t begin, std::int64_t keys, const row_scores& made,
             range_sums& out, const stop_signal& stop) const {
    out.sums.resize(factors_.size());
    const std::int64_t size = keys_of_group(kind_);
    const auto group = [&](std::int64_t keys_of) {
      return static_cast<std::uint64_t>(row) *
                 static_cast<std::uint64_t>(blocks_of(p_.n, keys_of)) +
             static_cast<std::uint64_t>(begin / keys_of);
    };
    simulated_row_block block{};
    block.source = {p_.from, purpose::main};
    block.kind = kind_;
    block.first_group = group(size);
    block.value_group = group(group_words);
    block.keys = keys;
    block.offset = made.offset;
    block.scale = made.scale;
    block.power = radius_power();
    block.needle = has_needle_ && begin == 0 ? &made.needle : nullptr;
    block.factors = factors_.data();
    block.n_factors = static_cast<std::int64_t>(factors_.size());
    block.sums = out.sums.data();
    block.scratch = thread_scratch(std::max<std::size_t>(1, factors_.size()) * score_scratch);
    block.stop = &stop;
    table_.random.simulate_row(block);
    out.least = block.least;
    out.most = block.most;
  }

  /// r^2 = 1 - U^(2 / (d - 2)) = 1 - 2^(-power * exponential); on a circle r = 1.
  double radius_power() const {
    const auto d = static_cast<double>(p_.head_dim);
    return p_.head_dim > 2 ? 2 / (d - 2) * log2e : 1e30;
  }

  /// Weight of a key with that score, with the kernel's rounding of its exponent.
  double weight_of(float score, std::size_t k, const simulated_sums& s) const {
    const double t = score * factors_[k];
    return at_most_one(std::exp2(t - s.reference) / s.weight);
  }

  score_row finish_one(const range_sums& all, const row_scores& made, std::size_t k) const {
    const simulated_sums& s = all.sums[k];
    const double log_weight = std::log(s.weight), first = s.first / s.weight;
    const double center = s.score_first / s.weight, multiplier = p_.multipliers[k];
    const bool rising = !(factors_[k] < 0);
    const float best = rising ? all.most : all.least;
    const bool needle_is_top =
        has_needle_ && (factors_[k] == 0 || all.most == -infinity ||
                        (rising ? made.needle >= best : made.needle <= best));
    score_row row{};
    row.entropy = at_least_zero(log_weight - ln2 * first);
    row.lse = ln2 * s.reference + log_weight;
    row.concentration = s.squares / (s.weight * s.weight);
    row.max_weight = weight_of(needle_is_top ? made.needle : best, k, s);
    row.mean_score = ln2 * (s.reference + first);
    row.score_variance =
        multiplier * multiplier * at_least_zero(s.score_second / s.weight - center * center);
    row.needle_weight = has_needle_ ? weight_of(made.needle, k, s) : p_.needle_cosine;
    row.needle_is_top = has_needle_ ? static_cast<double>(needle_is_top) : p_.needle_cosine;
    row.weighted_value = s.value / s.weight;
    return row;
  }

  const score_rows_problem& p_;
  const level_kernels& table_;
  score_kind kind_;
  bool has_needle_;
  std::vector<float> factors_;
};

/// Calls done(i, sums, scores) for each row.
template <class Done>
void for_each_row(const score_rows_problem& p, const execution& how, Done&& done) {
  const simulation rows(p);
  if (p.n > range_keys) {
    for (std::int64_t i = 0; i < p.count; ++i) {
      range_sums all;
      row_scores made{};
      rows.simulate(p.first + i, all, made, how);
      done(rows, i, all, made);
    }
    return;
  }
  const std::int64_t task_rows = std::max<std::int64_t>(1, 32768 / p.n);
  parallel_for(blocks_of(p.count, task_rows), how, [&](std::int64_t task, const stop_signal& stop) {
    const std::int64_t end = std::min(p.count, (task + 1) * task_rows);
    range_sums all;
    row_scores made{};
    for (std::int64_t i = task * task_rows; i < end; ++i) {
      rows.simulate(p.first + i, all, made, stop);
      done(rows, i, all, made);
    }
  });
}

}  // namespace

void run(const score_rows_problem& p, score_row* out, const execution& how) {
  check_score_rows(p);
  const auto width = static_cast<std::int64_t>(p.multipliers.size());
  check_memory("out", out, p.count * width);
  for_each_row(p, how,
               [&](const simulation& rows, std::int64_t i, const range_sums& all,
                   const row_scores& made) { rows.finish(all, made, out + i * width); });
}

void random::max_cosine(double* out, std::int64_t count, std::int64_t n, std::int64_t head_dim,
                        const random_stream& from, std::int64_t first, const execution& how) {
  score_rows_problem p;
  p.n = n;
  p.head_dim = head_dim;
  p.from = from;
  p.first = first;
  p.count = count;
  check_score_rows(p);
  check_memory("out", out, count);
  const double root = std::sqrt(static_cast<double>(head_dim));
  for_each_row(p, how,
               [&](const simulation&, std::int64_t i, const range_sums& all, const row_scores&) {
                 out[i] = static_cast<double>(all.most) / root;
               });
}

}  // namespace attnscale
