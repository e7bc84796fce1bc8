// SPDX-License-Identifier: BSD-3-Clause
//
// From options to a case: checks, multipliers of laws, and the case's identity, whose numbers match
// Python's.
#include "attnscale/experiments.hpp"

#include <algorithm>
#include <cmath>

#include "attnscale/detail/refuse.hpp"
#include "experiments/case_key.hpp"
#include "experiments/experiment_laws.hpp"
#include "experiments/experiment_run.hpp"
#include "experiments/projected_points.hpp"
#include "experiments/sparsity_rows.hpp"

namespace attnscale {
namespace {

using namespace detail;

std::uint64_t identity_of(std::int64_t number) { return static_cast<std::uint64_t>(number); }

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& each : texts) all += (all.empty() ? "" : "; ") + each;
  return all;
}

std::string_view name_of(distribution kind) {
  constexpr std::string_view names[] = {"uniform", "normal", "truncated_normal", "laplace"};
  return names[static_cast<std::size_t>(kind)];
}

/// Index of a distribution in Python's list.
std::uint64_t number_of(distribution kind) {
  switch (kind) {
    case distribution::normal:
      return 0;
    case distribution::uniform:
      return 1;
    case distribution::truncated_normal:
      return 2;
    case distribution::laplace:
      return 3;
  }
  return 0;
}

std::string_view name_of(score_model model) {
  constexpr std::string_view names[] = {"sphere", "gaussian", "correlated"};
  return names[static_cast<std::size_t>(model)];
}

void check_cosine(double cosine) {
  check_finite("cosine", cosine);
  if (cosine < -1 || cosine > 1) refuse("cosine must be between -1 and 1, got " + text_of(cosine));
}

/// A case with rows of simulated scores.
experiment_result run_scores(score_experiment_case what, const std::vector<law_or_scale>& law,
                             std::int64_t least_head_dim, std::int64_t usual_samples,
                             const run_options& how) {
  check_count("n", what.n);
  check_count("head_dim", what.head_dim, least_head_dim);
  const betas_of_laws laws = read_laws(law, what.n, what.head_dim);
  what.betas = laws.betas;
  experiment_case run;
  run.name = detail::name_of(what.what);
  run.quantities = quantities_of(what.what);
  run.entries = laws.names;
  run.parameters = {{"n", text_of(what.n)},
                    {"head_dim", text_of(what.head_dim)},
                    {"law", joined(laws.names)},
                    {"model", std::string(name_of(what.model))},
                    {"correlation", text_of(what.correlation)},
                    {"cosine", text_of(what.cosine)}};
  run.identity = {identity_of(what.n), identity_of(what.head_dim)};
  run.usual_samples = usual_samples;
  run.cost =
      static_cast<double>(what.n) * (static_cast<double>(what.head_dim) +
                                     8.0 * static_cast<double>(law.size()) * looks_of(what.what));
  run.draw = [&](std::uint64_t key, std::int64_t first, std::int64_t count, double* out,
                 const execution& with) { draw_rows(what, key, first, count, out, with); };
  return run_case(run, how);
}

/// Mean cosine of two keys in the correlated model; 0 for other models.
double read_correlation(score_model model, const std::optional<double>& correlation) {
  check_enumerator("model", model, score_model::correlated);
  if (model != score_model::correlated && correlation)
    refuse("correlation goes with model='correlated', got model='" + std::string(name_of(model)) +
           "'");
  const double share = correlation.value_or(model == score_model::correlated ? 0.5 : 0);
  check_finite("correlation", share);
  if (share < 0 || share > 1) refuse("correlation must be between 0 and 1, got " + text_of(share));
  return share;
}

void check_projections(const projection_options& options) {
  check_count("n", options.n, 2);
  check_count("dim", options.dim);
  check_count("k", options.k);
  check_matrix_fits("n", options.n, std::max(options.dim, options.k));
  if (options.eps.empty()) refuse("eps must have at least one value, got none");
  for (const double eps : options.eps) check_in_unit_interval("eps", eps);
  check_enumerator("kind", options.kind, projection_kind::sparse);
}

}  // namespace

namespace montecarlo {

experiment_result dot_product_variance(const dot_product_options& options, const run_options& how) {
  check_count("head_dim", options.head_dim);
  const dot_product_case what{options.head_dim, options.components, options.query_mean,
                              options.key_mean, options.std};
  check_components(what);
  experiment_case run;
  run.name = "dot_product_variance";
  run.quantities = {{"variance"}, {"scaled_variance"}, {"mean"}, {"kurtosis"}};
  run.entries = {std::string(name_of(options.components))};
  run.parameters = {{"head_dim", text_of(options.head_dim)},
                    {"distribution", run.entries[0]},
                    {"mean", text_of(options.query_mean) + " and " + text_of(options.key_mean)},
                    {"std", text_of(options.std)}};
  run.identity = {identity_of(options.head_dim), number_of(options.components)};
  run.usual_samples = 1600 * pairs_of_row;
  run.block = pairs_of_row;
  run.cost = 8.0 * static_cast<double>(options.head_dim) * static_cast<double>(pairs_of_row);
  run.draw = [&](std::uint64_t key, std::int64_t first, std::int64_t count, double* out,
                 const execution& with) { draw_rows(what, key, first, count, out, with); };
  run.estimate = [&](const tally& rows) { return dot_product_moments(rows, options.head_dim); };
  return run_case(run, how);
}

experiment_result entropy_vs_length(const entropy_options& options, const run_options& how) {
  score_experiment_case what{.what = score_experiment::entropy_vs_length,
                             .model = options.model,
                             .n = options.n,
                             .head_dim = options.head_dim};
  what.correlation = read_correlation(options.model, options.correlation);
  const std::int64_t least = options.model == score_model::sphere ? 2 : 1;
  return run_scores(what, options.law, least, 1000, how);
}

experiment_result softmax_saturation(const saturation_options& options, const run_options& how) {
  // Normal queries and keys are the correlated model with correlation 0.
  return run_scores({.what = score_experiment::softmax_saturation,
                     .model = score_model::correlated,
                     .n = options.n,
                     .head_dim = options.head_dim},
                    options.law, 1, 1000, how);
}

experiment_result needle_dilution(const needle_options& options, const run_options& how) {
  check_cosine(options.cosine);
  return run_scores({.what = score_experiment::needle_dilution,
                     .n = options.n,
                     .head_dim = options.head_dim,
                     .cosine = options.cosine},
                    options.law, 2, 1000, how);
}

experiment_result averaging_error(const averaging_options& options, const run_options& how) {
  return run_scores(
      {.what = score_experiment::averaging_error, .n = options.n, .head_dim = options.head_dim},
      options.law, 2, 10'000, how);
}

experiment_result head_dimension(const head_dimension_options& options, const run_options& how) {
  check_cosine(options.cosine);
  return run_scores({.what = score_experiment::head_dimension,
                     .n = options.n,
                     .head_dim = options.head_dim,
                     .cosine = options.cosine},
                    options.law, 2, 1000, how);
}

experiment_result max_cosine(const max_cosine_options& options, const run_options& how) {
  check_count("n", options.n);
  check_count("head_dim", options.head_dim, 2);
  experiment_case run;
  run.name = "max_cosine";
  run.quantities = {{"max_cosine"}};
  run.entries = {"max_cosine"};
  run.parameters = {{"n", text_of(options.n)}, {"head_dim", text_of(options.head_dim)}};
  run.identity = {identity_of(options.n), identity_of(options.head_dim)};
  run.cost = static_cast<double>(options.n) * static_cast<double>(options.head_dim);
  run.draw = [&](std::uint64_t key, std::int64_t first, std::int64_t count, double* out,
                 const execution& with) {
    random::max_cosine(out, count, options.n, options.head_dim, {key, 0}, first, with);
  };
  return run_case(run, how);
}

experiment_result sparsity(const sparsity_options& options, const run_options& how) {
  check_enumerator("model", options.model, score_model::correlated);
  const bool sphere = options.model == score_model::sphere;
  if (options.model == score_model::correlated)
    refuse("model must be one of 'gaussian', 'sphere', got 'correlated'");
  check_count("n", options.n);
  check_count("head_dim", options.head_dim, sphere ? 2 : 1);
  if (sphere) check_matrix_fits("n", options.n, options.head_dim);
  const betas_of_laws laws = read_laws(options.law, options.n, options.head_dim);
  const sparsity_rows rows({options.model, options.n, options.head_dim}, laws.betas,
                           options.normalizer);
  experiment_case run;
  run.name = "sparsity";
  run.quantities = {{"support"}, {"entropy"}, {"concentration"}, {"max_weight"}};
  for (const std::string& law : laws.names)
    for (const std::string& normalizer : rows.names())
      run.entries.emplace_back(law).append(", ").append(normalizer);
  run.parameters = {{"n", text_of(options.n)},
                    {"head_dim", text_of(options.head_dim)},
                    {"law", joined(laws.names)},
                    {"normalizer", joined(rows.names())},
                    {"model", std::string(name_of(options.model))}};
  run.identity = {identity_of(options.n), identity_of(options.head_dim)};
  run.cost = static_cast<double>(options.n) *
             (40.0 + (sphere ? static_cast<double>(options.head_dim) : 0) +
              20.0 * static_cast<double>(run.entries.size()));
  run.draw = [&](std::uint64_t key, std::int64_t first, std::int64_t count, double* out,
                 const execution& with) { rows.draw(key, first, count, out, with); };
  return run_case(run, how);
}

experiment_result jl_distortion(const projection_options& options, const run_options& how) {
  check_projections(options);
  std::vector<float> points;
  if (options.points) points = projected_points(options.points, options.n, options.dim);
  const projections_case what{options.points ? points.data() : nullptr,
                              options.n,
                              options.dim,
                              options.k,
                              options.kind,
                              options.eps};
  constexpr std::string_view kinds[] = {"gaussian", "sign", "sparse"};
  experiment_case run;
  run.name = "jl_distortion";
  run.quantities = quantities_of_projections();
  for (const double eps : options.eps) run.entries.push_back(text_of(eps));
  run.parameters = {{"n", text_of(options.n)},
                    {"dim", text_of(options.dim)},
                    {"k", text_of(options.k)},
                    {"kind", std::string(kinds[static_cast<std::size_t>(options.kind)])},
                    {"eps", joined(run.entries)}};
  const auto bytes = static_cast<std::size_t>(options.n * options.dim) * sizeof(float);
  run.parameters.emplace_back(
      "points", options.points ? "crc32:" + text_of(crc32(options.points, bytes)) : "none");
  run.identity = {identity_of(options.n), identity_of(options.dim), identity_of(options.k),
                  static_cast<std::uint64_t>(options.kind)};
  run.usual_samples = 10;
  run.cost = static_cast<double>(options.n) * static_cast<double>(options.k) *
             static_cast<double>(options.dim + options.n);
  run.draw = [&](std::uint64_t key, std::int64_t first, std::int64_t count, double* out,
                 const execution& with) { draw_rows(what, key, first, count, out, with); };
  return run_case(run, how);
}

}  // namespace montecarlo
}  // namespace attnscale
