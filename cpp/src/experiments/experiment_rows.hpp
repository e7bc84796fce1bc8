// SPDX-License-Identifier: BSD-3-Clause
//
// Rows of each experiment: simulated samples become the numbers whose means it estimates. Row i
// depends only on the key and i. Python's experiments and those of experiments.hpp call these.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "attnscale/montecarlo.hpp"
#include "experiments/estimates.hpp"

namespace attnscale::detail {

/// A column of an experiment's rows, and its estimate.
struct quantity {
  std::string_view name;
  column_kind kind = column_kind::number;
};

/// Experiments on simulated rows of attention, which differ in the quantities they compute.
enum class score_experiment : std::uint8_t {
  entropy_vs_length,
  softmax_saturation,
  needle_dilution,
  averaging_error,
  head_dimension,
};

std::string_view name_of(score_experiment what);

/// Experiment by name; throws std::invalid_argument for an unknown name.
score_experiment score_experiment_named(std::string_view name);

const std::vector<quantity>& quantities_of(score_experiment what);

/// Number of multiples of its multiplier at which an experiment computes each row.
int looks_of(score_experiment what);

/// n random keys per row, and the multiples of 1 / sqrt(head_dim), which all see the same rows.
struct score_experiment_case {
  score_experiment what = score_experiment::entropy_vs_length;
  score_model model = score_model::sphere;
  std::int64_t n = 1;
  std::int64_t head_dim = 1;
  double correlation = 0;
  double cosine = std::numeric_limits<double>::quiet_NaN();  ///< of the needle; NaN: no needle
  std::vector<double> betas{};
};

/// Rows first ... first + count - 1: (count, betas, quantities), contiguous.
void draw_rows(const score_experiment_case& what, std::uint64_t key, std::int64_t first,
               std::int64_t count, double* out, const execution& how);

/// Pairs of vectors with independent components of a distribution with this standard deviation (of
/// a truncated normal: before the cut at two of them).
struct dot_product_case {
  std::int64_t head_dim = 1;
  distribution kind = distribution::normal;
  double query_mean = 0, key_mean = 0;
  double std = 1;
};

/// Refuses unknown distributions, and sizes at which fourth powers of products, or their squares in
/// standard errors, leave the range of float32 or double.
void check_components(const dot_product_case& what);

/// Means of s, s^2, s^3 and s^4 over pairs_of_row samples each: (count, 4).
void draw_rows(const dot_product_case& what, std::uint64_t key, std::int64_t first,
               std::int64_t count, double* out, const execution& how);

/// Random projections of n points to k dimensions: given points, or new standard normal ones for
/// each projection.
struct projections_case {
  const float* points = nullptr;  ///< (n, dim), contiguous, from projected_points()
  std::int64_t n = 2;
  std::int64_t dim = 1;
  std::int64_t k = 1;
  projection_kind kind = projection_kind::gaussian;
  std::vector<double> eps{};
};

const std::vector<quantity>& quantities_of_projections();

/// Draws one row per projection: (count, eps, quantities).
void draw_rows(const projections_case& what, std::uint64_t key, std::int64_t first,
               std::int64_t count, double* out, const execution& how);

/// Scores q . k / sqrt(head_dim) of n random keys per row, one stream per row: (count, n). With
/// score_model::sphere the keys of a row are formed, in n x head_dim numbers of memory.
struct random_scores_case {
  score_model model = score_model::gaussian;  ///< gaussian or sphere
  std::int64_t n = 1;
  std::int64_t head_dim = 1;
};

void draw_scores(const random_scores_case& what, std::uint64_t key, std::int64_t first,
                 std::int64_t count, double* out, const execution& how);

}  // namespace attnscale::detail
