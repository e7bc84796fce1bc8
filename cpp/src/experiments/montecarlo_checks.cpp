// SPDX-License-Identifier: BSD-3-Clause
#include "experiments/montecarlo_checks.hpp"

#include <algorithm>
#include <string>

#include "attnscale/detail/refuse.hpp"

namespace attnscale::detail {
namespace {

void check_order(const char* rule, double low, double high, bool in_order) {
  if (!in_order) refuse(std::string(rule) + ", got " + text_of(low) + " and " + text_of(high));
}

}  // namespace

void check_range(std::int64_t first, std::int64_t count) {
  check_at_least("first", first, 0);
  check_at_least("count", count, 0);
  if (first > (std::int64_t{1} << 62) - count)
    refuse("first must be small enough for the last of count to be below 2^62, got " +
           text_of(first) + " with count " + text_of(count));
}

void check_variate(const variate& what) {
  check_enumerator("kind", what.kind, distribution::laplace);
  const variate usual;
  if (what.kind != distribution::truncated_normal &&
      (what.low != usual.low || what.high != usual.high))
    refuse("low and high go with distribution::truncated_normal, got " + text_of(what.low) +
           " and " + text_of(what.high));
  if (what.kind == distribution::uniform) {
    check_finite("low", what.a);
    check_finite("high", what.b);
    check_order("low must not be above high", what.a, what.b, what.a <= what.b);
    return;
  }
  check_finite("mean", what.a);
  check_finite_from(what.kind == distribution::laplace ? "scale" : "std", what.b, 0);
  if (what.kind == distribution::truncated_normal)  // up to infinity: half a normal distribution
    check_order("low must be below high", what.low, what.high, what.low < what.high);
}

void check_radius(double radius) { check_finite_from("radius", radius, 0); }

void check_score_rows(const score_rows_problem& problem) {
  check_at_least("n", problem.n, 1);
  check_at_least("head_dim", problem.head_dim, 1);
  check_matrix_fits("head_dim", problem.head_dim, 1);
  check_matrix_fits("n", problem.n, 1);
  check_range(problem.first, problem.count);
  check_enumerator("model", problem.model, score_model::correlated);
  check_matrix_fits("count", problem.count, static_cast<std::int64_t>(problem.multipliers.size()));
  if (!(problem.correlation >= 0 && problem.correlation <= 1))
    refuse("correlation must be between 0 and 1, got " + text_of(problem.correlation));
  if (problem.model != score_model::correlated && problem.correlation != 0)
    refuse("correlation goes with score_model::correlated, got " + text_of(problem.correlation));
  for (const double multiplier : problem.multipliers) check_finite("multipliers", multiplier);
  if (problem.needle_cosine < -1 || problem.needle_cosine > 1)
    refuse("needle_cosine must be between -1 and 1, or NaN, got " + text_of(problem.needle_cosine));
}

void check_dot_products(const dot_products_problem& problem) {
  check_at_least("head_dim", problem.head_dim, 1);
  check_at_least("block", problem.block, 1);
  check_matrix_fits("head_dim", problem.head_dim, 1);
  check_range(problem.first, problem.count);
  if (problem.first % problem.block != 0)
    refuse("first must be a multiple of block, " + text_of(problem.block) + ", got " +
           text_of(problem.first));
  check_variate(problem.x);
  check_variate(problem.y);
}

void check_projection(const projection& what, std::int64_t columns, std::int64_t n_points,
                      std::int64_t dim) {
  check_at_least("columns", columns, 1);
  check_at_least("n_points", n_points, 0);
  check_at_least("dim", dim, 1);
  check_matrix_fits("columns", columns, std::max(n_points, dim));
  check_matrix_fits("n_points", n_points, dim);
  check_enumerator("kind", what.kind, projection_kind::sparse);
  if (what.kind == projection_kind::sparse && !(what.density > 0 && what.density <= 1))
    refuse("density must be above 0 and at most 1, got " + text_of(what.density));
  if (what.kind != projection_kind::sparse && what.density != projection{}.density)
    refuse("density goes with projection_kind::sparse, got " + text_of(what.density));
}

void check_comparison(std::int64_t dim_before, std::int64_t dim_after, std::int64_t n_points,
                      const std::vector<double>& eps) {
  check_at_least("dim_before", dim_before, 1);
  check_at_least("dim_after", dim_after, 1);
  check_at_least("n_points", n_points, 0);
  check_matrix_fits("n_points", n_points, std::max({dim_before, dim_after, n_points}));
  for (const double each : eps)
    if (!(each >= 0)) refuse("eps must be at least 0, got " + text_of(each));
}

}  // namespace attnscale::detail
