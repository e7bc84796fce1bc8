// SPDX-License-Identifier: BSD-3-Clause
#include "experiments/experiment_rows.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "attnscale/detail/refuse.hpp"
#include "experiments/montecarlo_checks.hpp"
#include "experiments/projected_points.hpp"

namespace attnscale::detail {
namespace {

/// Largest weight above which a row of softmax_saturation counts as saturated.
constexpr double saturated_weight = 0.99;

constexpr std::array<std::string_view, 5> score_experiment_names{
    "entropy_vs_length", "softmax_saturation", "needle_dilution", "averaging_error",
    "head_dimension"};

/// For weights p at this scale and J = diag(p) - p p^T: whether the row is saturated, the trace and
/// the Frobenius norm of J, a bound of its largest eigenvalue, and scale times the norm.
void write_norms(const score_row* at, double scale, double* out) {
  const double top = at[0].max_weight, squares = at[0].concentration;
  // From sums, not from log-sum-exps, whose rounding grows with the scores.
  const double cubes = top * top * top / at[2].max_weight;
  const double squared_norm = squares - 2 * cubes + squares * squares;
  // Near a one-hot row mostly rounding is left; the norm lies between an entry of J and the trace.
  // NaN is kept.
  const double root = std::sqrt(squared_norm < 0 ? 0 : squared_norm);
  const double norm = std::min(std::max(root, top * (1 - top)), 1 - squares);
  const double bound = 2 * top * (1 - top);
  out[0] = top > saturated_weight ? 1 : 0;
  out[1] = 1 - squares;
  out[2] = norm;
  out[3] = bound > 0.5 ? 0.5 : bound;
  out[4] = scale * norm;
}

/// Quantities of an experiment from a row at one multiplier.
void write_quantities(score_experiment what, const score_row* at, double scale, double* out) {
  const score_row& row = at[0];
  switch (what) {
    case score_experiment::entropy_vs_length:
      out[0] = row.entropy;
      out[1] = row.lse;
      out[2] = row.concentration;
      out[3] = row.max_weight;
      out[4] = row.mean_score;
      out[5] = row.score_variance;
      return;
    case score_experiment::softmax_saturation:
      return write_norms(at, scale, out);
    case score_experiment::needle_dilution:
      out[0] = row.needle_weight;
      out[1] = row.needle_is_top;
      out[2] = row.entropy;
      return;
    case score_experiment::averaging_error:
      out[0] = row.weighted_value * row.weighted_value;
      out[1] = row.concentration;
      return;
    case score_experiment::head_dimension:
      out[0] = row.needle_is_top;
      out[1] = row.needle_weight;
      return;
  }
}

/// Distribution of the core with this mean and standard deviation.
variate variate_of(distribution kind, double mean, double std) {
  const double half = std::sqrt(3.0) * std;
  switch (kind) {
    case distribution::uniform:
      return {.kind = kind, .a = mean - half, .b = mean + half};
    case distribution::laplace:
      return {.kind = kind, .a = mean, .b = std / std::sqrt(2.0)};
    case distribution::normal:
    case distribution::truncated_normal:
      break;
  }
  return {.kind = kind, .a = mean, .b = std};
}

/// n points with independent standard normal coordinates.
std::vector<float> normal_points(const projections_case& what, const random_stream& from,
                                 const execution& how) {
  std::vector<float> points(static_cast<std::size_t>(what.n * what.dim));
  fill(points.data(), what.n * what.dim, {}, from, 0, how);
  return points;
}

}  // namespace

std::string_view name_of(score_experiment what) {
  return score_experiment_names[static_cast<std::size_t>(what)];
}

/// Multiples of the scale per row: partition functions at 1, 2 and 3 times the scale give the sums
/// of p^2 and p^3.
int looks_of(score_experiment what) { return what == score_experiment::softmax_saturation ? 3 : 1; }

score_experiment score_experiment_named(std::string_view name) {
  for (std::size_t i = 0; i < score_experiment_names.size(); ++i)
    if (score_experiment_names[i] == name) return static_cast<score_experiment>(i);
  throw std::invalid_argument("there is no experiment " + std::string(name));
}

const std::vector<quantity>& quantities_of(score_experiment what) {
  using enum column_kind;
  // Never destroyed: experiments may run in a destructor at the end of the process.
  static const auto& of_experiment = *new const std::array<std::vector<quantity>, 5>{
      {{{"entropy"},
        {"lse"},
        {"concentration"},
        {"max_weight"},
        {"mean_score"},
        {"score_variance"}},
       {{"saturated", share},
        {"jacobian_trace"},
        {"jacobian_norm"},
        {"spectral_bound"},
        {"gradient_norm"}},
       {{"needle_weight"}, {"needle_is_top", share}, {"entropy"}},
       {{"error_variance"}, {"concentration"}},
       {{"accuracy", share}, {"needle_weight"}}}};
  return of_experiment[static_cast<std::size_t>(what)];
}

void draw_rows(const score_experiment_case& what, std::uint64_t key, std::int64_t first,
               std::int64_t count, double* out, const execution& how) {
  const int looks = looks_of(what.what);
  score_rows_problem problem{.model = what.model,
                             .n = what.n,
                             .head_dim = what.head_dim,
                             .correlation = what.correlation,
                             .needle_cosine = what.cosine,
                             .from = {key, 0},
                             .first = first,
                             .count = count};
  for (const double beta : what.betas)
    for (int multiple = 1; multiple <= looks; ++multiple)
      problem.multipliers.push_back(beta * multiple);
  check_score_rows(problem);
  std::vector<score_row> rows(static_cast<std::size_t>(count) * problem.multipliers.size());
  run(problem, rows.data(), how);
  const std::size_t width = quantities_of(what.what).size();
  const double root = std::sqrt(static_cast<double>(what.head_dim));
  const score_row* at = rows.data();
  for (std::int64_t i = 0; i < count; ++i)
    for (const double beta : what.betas) {
      write_quantities(what.what, at, beta / root, out);
      at += looks;
      out += width;
    }
}

void check_components(const dot_product_case& what) {
  constexpr double most = 1e12, most_deviations = 1e6;
  check_enumerator("distribution", what.kind, distribution::laplace);
  const std::string beyond = ": powers of products leave the range of floating point; got ";
  for (const double mean : {what.query_mean, what.key_mean}) {
    check_finite("mean", mean);
    if (std::abs(mean) > most)
      refuse("mean must be between -1e12 and 1e12" + beyond + text_of(mean));
  }
  check_greater("std", what.std, 0);
  if (what.std > most || what.std < 1 / most)
    refuse("std must be between 1e-12 and 1e12" + beyond + text_of(what.std));
  for (const double mean : {what.query_mean, what.key_mean})
    if (std::abs(mean) > most_deviations * what.std)
      refuse("mean must be at most 1e6 times std, so that float32 components keep digits; got " +
             text_of(mean) + " with std " + text_of(what.std));
}

void draw_rows(const dot_product_case& what, std::uint64_t key, std::int64_t first,
               std::int64_t count, double* out, const execution& how) {
  check_components(what);
  check_range(first, count);
  const dot_products_problem problem{.head_dim = what.head_dim,
                                     .x = variate_of(what.kind, what.query_mean, what.std),
                                     .y = variate_of(what.kind, what.key_mean, what.std),
                                     .block = pairs_of_row,
                                     .from = {key, 0},
                                     .first = first * pairs_of_row,
                                     .count = count * pairs_of_row};
  std::vector<power_sums> sums(static_cast<std::size_t>(count));
  run(problem, sums.data(), how);
  const auto pairs = static_cast<double>(pairs_of_row);
  for (const power_sums& of_row : sums)
    for (const double sum : {of_row.s, of_row.s2, of_row.s3, of_row.s4}) *out++ = sum / pairs;
}

const std::vector<quantity>& quantities_of_projections() {
  using enum column_kind;
  static const auto& all = *new const std::vector<quantity>{
      {"distortion"}, {"outside", bounded}, {"success", share}, {"mean_ratio"}, {"ratio_std"}};
  return all;
}

void draw_rows(const projections_case& what, std::uint64_t key, std::int64_t first,
               std::int64_t count, double* out, const execution& how) {
  check_range(first, count);
  for (std::int64_t i = first; i < first + count; ++i) {
    // Two streams per sample: for the points and for the matrix.
    const std::uint64_t stream = 2 * static_cast<std::uint64_t>(i);
    std::vector<float> made;
    if (!what.points) made = normal_points(what, {key, stream}, how);
    jl_distortion_options options;
    options.k = what.k;
    options.matrix.kind = what.kind;
    options.matrix.from = {key, stream + 1};
    options.eps = what.eps;
    options.how = how;
    const jl_distortion_result found =
        distort(what.points ? what.points : made.data(), what.n, what.dim, options);
    for (const jl_share& share : found.shares)
      for (const double each : {found.distortion, share.outside, share.keeps_all ? 1.0 : 0.0,
                                found.mean, std::sqrt(found.variance)})
        *out++ = each;
  }
}

void draw_scores(const random_scores_case& what, std::uint64_t key, std::int64_t first,
                 std::int64_t count, double* out, const execution& how) {
  check_range(first, count);
  check_at_least("n", what.n, 1);
  check_at_least("head_dim", what.head_dim, 1);
  if (what.model == score_model::sphere) check_matrix_fits("n", what.n, what.head_dim);
  const double radius = std::sqrt(static_cast<double>(what.head_dim));
  std::vector<double> keys;
  for (std::int64_t i = first; i < first + count; ++i, out += what.n) {
    const random_stream from{key, static_cast<std::uint64_t>(i)};
    if (what.model != score_model::sphere) {
      fill(out, what.n, {}, from, 0, how);
      continue;
    }
    // The query lies along the first axis; all norms are sqrt(head_dim).
    keys.resize(static_cast<std::size_t>(what.n * what.head_dim));
    fill_sphere(keys.data(), what.n, what.head_dim, radius, from, 0, how);
    for (std::int64_t j = 0; j < what.n; ++j)
      out[j] = keys[static_cast<std::size_t>(j * what.head_dim)];
  }
}

}  // namespace attnscale::detail
