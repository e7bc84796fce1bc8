// SPDX-License-Identifier: BSD-3-Clause
//
// Random numbers and simulations. A number depends only on key, stream and index: results have the
// same bits for any number of threads, any split of the work and any SIMD level.
//
// Numbers out of range throw std::invalid_argument with the messages of the Python package: counts
// and `first` are at least 0, numbers of keys, coordinates and columns at least 1, parameters
// finite. The caller owns the arrays, with room for all results; a null pointer is refused.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "attnscale/detail/export.hpp"
#include "attnscale/problem.hpp"
#include "attnscale/types.hpp"

namespace attnscale {

/// One block of Philox4x32-10, the only generator here.
ATTNSCALE_EXPORT std::array<std::uint32_t, 4> philox4x32_10(
    const std::array<std::uint32_t, 4>& counter, const std::array<std::uint32_t, 2>& key);

/// A distribution and its parameters, by their names in messages and in the Python package: mean
/// and std (laplace: scale), low and high.
struct variate {
  distribution kind = distribution::normal;
  double a = 0;     ///< mean; uniform: start of the interval (low)
  double b = 1;     ///< standard deviation (laplace: scale); uniform: end of the interval (high)
  double low = -2;  ///< truncated_normal: interval in standard deviations from the mean, not
  double high = 2;  ///< rescaled; an interval beyond 37.5 becomes its inner end
};

namespace random {

/// out[i] = element first + i of the stream. Throws attnscale::interrupted.
ATTNSCALE_EXPORT void fill(float* out, std::int64_t count, const variate& what,
                           const random_stream& from, std::int64_t first = 0,
                           const execution& how = {});
ATTNSCALE_EXPORT void fill(double* out, std::int64_t count, const variate& what,
                           const random_stream& from, std::int64_t first = 0,
                           const execution& how = {});

/// Points first ... first + count - 1, uniform on the sphere of that radius, contiguous (count,
/// dim).
ATTNSCALE_EXPORT void fill_sphere(float* out, std::int64_t count, std::int64_t dim, double radius,
                                  const random_stream& from, std::int64_t first = 0,
                                  const execution& how = {});
ATTNSCALE_EXPORT void fill_sphere(double* out, std::int64_t count, std::int64_t dim, double radius,
                                  const random_stream& from, std::int64_t first = 0,
                                  const execution& how = {});

}  // namespace random

/// Rows of softmax(multiplier * s) over n random scores s = q . k / sqrt(head_dim):
///   sphere      q and the keys are uniform on the sphere of radius sqrt(head_dim)
///   gaussian    the scores are independent standard normal numbers
///   correlated  q and the keys have standard normal components, and the keys share a part:
///               k_j = sqrt(correlation) m + sqrt(1 - correlation) e_j, a new m in each row
/// Each row is one sample with its own numbers. No key is formed: given q, the scores have a
/// distribution of their own, which is sampled exactly.
struct score_rows_problem {
  score_model model = score_model::sphere;
  std::int64_t n = 1;  ///< keys per row, with the needle
  std::int64_t head_dim = 1;
  double correlation = 0;             ///< from 0 to 1
  std::vector<double> multipliers{};  ///< finite; beyond the range of float the row is NaN
  /// Key 0 has norm sqrt(head_dim) and this cosine with q; NaN: no needle.
  double needle_cosine = std::numeric_limits<double>::quiet_NaN();
  random_stream from{};
  std::int64_t first = 0;  ///< rows first ... first + count - 1
  std::int64_t count = 0;
};

/// One row at one multiplier; score means multiplier * s.
struct score_row {
  double entropy, lse, concentration, max_weight, mean_score, score_variance;
  double needle_weight;   ///< NaN without a needle
  double needle_is_top;   ///< 1 if no other key has a larger score, else 0; NaN without a needle
  double weighted_value;  ///< sum of weight * value, for standard normal values
};

/// Writes count x multipliers rows, contiguous. Memory does not grow with n or count. Throws
/// attnscale::interrupted and std::bad_alloc.
ATTNSCALE_EXPORT void run(const score_rows_problem& problem, score_row* out,
                          const execution& how = {});

namespace random {

/// Largest cosine of a vector with n points, uniform on the sphere, for rows first ... first +
/// count - 1.
ATTNSCALE_EXPORT void max_cosine(double* out, std::int64_t count, std::int64_t n,
                                 std::int64_t head_dim, const random_stream& from,
                                 std::int64_t first = 0, const execution& how = {});

}  // namespace random

/// Samples of s = sum over i of x_i y_i with head_dim random components each.
struct dot_products_problem {
  std::int64_t head_dim = 1;
  variate x{}, y{};
  std::int64_t block = 1;  ///< samples per sum
  random_stream from{};
  std::int64_t first = 0;  ///< samples first ... first + count - 1; a multiple of block
  std::int64_t count = 0;
};

/// Sums of powers of s over a block.
struct power_sums {
  double s, s2, s3, s4;
};

/// Writes ceil(count / block) sums.
ATTNSCALE_EXPORT void run(const dot_products_problem& problem, power_sums* out,
                          const execution& how = {});

/// A random matrix R, generated where it is needed.
struct projection {
  projection_kind kind = projection_kind::gaussian;
  double density = 1.0 / 3;  ///< sparse: above 0, at most 1
  random_stream from{};
};

/// |after_i - after_j|^2 / |before_i - before_j|^2 over all pairs i < j of n_points; 1 for equal
/// points that stay equal. All NaN (outside: 0) without pairs.
struct distance_ratios {
  double least, most, mean, variance;
  std::vector<std::int64_t> outside{};  ///< pairs with |ratio - 1| > eps, one per eps
};

namespace random {

/// out = points R^T / sqrt(columns) for contiguous points (n_points, dim). R is the same at every
/// level; rounding of products depends on the level.
ATTNSCALE_EXPORT void project(float* out, std::int64_t columns, const float* points,
                              std::int64_t n_points, std::int64_t dim, const projection& how,
                              const execution& run_how = {});

/// Ratios of distances after and before a projection. Points may be in any unit: squares out of
/// float32's range are summed in double.
ATTNSCALE_EXPORT distance_ratios compare_distances(const float* before, std::int64_t dim_before,
                                                   const float* after, std::int64_t dim_after,
                                                   std::int64_t n_points,
                                                   const std::vector<double>& eps,
                                                   const execution& how = {});

}  // namespace random

// Aliases without the namespace.
using random::compare_distances;
using random::fill;
using random::fill_sphere;
using random::max_cosine;
using random::project;

}  // namespace attnscale
