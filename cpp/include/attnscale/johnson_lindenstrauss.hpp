// SPDX-License-Identifier: BSD-3-Clause
//
// Dimensions for n vectors: the Johnson-Lindenstrauss lemma, a rule of thumb based on entropy, and
// the effect of a random projection on the distances of given points.
//
//   const auto k = attnscale::jl_min_dim(512, {.eps = 0.5});                            // 300
//   const auto d = attnscale::jl_rule_of_thumb(100'000);                                // 92.1
//   const auto found = attnscale::jl_distortion(points, {.k = k, .eps = {0.5}});
//   found.shares[0].outside <= found.shares[0].outside_bound
//
// Every function throws std::invalid_argument, which names the argument, the rule and what was
// seen. Numbers of vectors are doubles, so that 1e30 is allowed.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attnscale/dense_array.hpp"
#include "attnscale/detail/export.hpp"
#include "attnscale/detail/refuse.hpp"
#include "attnscale/detail/strided_array.hpp"
#include "attnscale/montecarlo.hpp"

namespace attnscale {

/// Tail bound: a random projection to k dimensions changes a squared distance by more than a factor
/// 1 +- eps with a probability of at most 2 exp(-k rate / 2).
enum class jl_tail : std::uint8_t {
  relaxed,     ///< rate = eps^2 / 2 - eps^3 / 3: Dasgupta and Gupta 2003, theorem 2.1
  chi_square,  ///< rate = eps - ln(1 + eps): the exact exponent, for matrices of normal numbers
};

/// Options of jl_min_dim.
struct jl_options {
  /// Relative error of squared distances, in (0, 1); has to be given.
  double eps = std::numeric_limits<double>::quiet_NaN();
  /// In (0, 1): maximum failure probability of the union over all pairs. Default: the projection
  /// succeeds with probability 1 / n or more, which is all that the theorem needs.
  double failure_probability = std::numeric_limits<double>::quiet_NaN();
  jl_tail tail = jl_tail::relaxed;
};

/// Dimension in which a random projection keeps all squared distances of n vectors within a factor
/// 1 +- eps: 4 ln n / rate, or 2 ln(n (n - 1) / failure_probability) / rate, rounded up; at least
/// 1.
ATTNSCALE_EXPORT std::int64_t jl_min_dim(double n, const jl_options& options);

/// constant * ln n: the dimension where the annealed entropy of the n^2 pairs of n vectors at scale
/// 1 is used up (Su 2020 and 2023, kexue.fm/7695 and /9588). An estimate of entropy, not of
/// distances.
ATTNSCALE_EXPORT double jl_rule_of_thumb(double n, double constant = 8);

/// Exact constant of the rule of thumb, which rounds it to 8.33 and to 8: 4 / ln(golden ratio).
inline constexpr double golden_dimension = 8.312347684940109;

/// head_dim ln(n) / ln(n0): the rule of thumb's dimension for n keys, if head_dim suits n0.
ATTNSCALE_EXPORT double equivalent_head_dim(double n, double head_dim, double n0 = 512);

/// Element-wise over an xtensor expression of counts, in its shape.
template <class E>
dense_array<std::int64_t> jl_min_dim(const xt::xexpression<E>& n, const jl_options& options) {
  const dense_array<double> counts = n;
  auto found = dense_array<std::int64_t>::from_shape(counts.shape());
  for (std::size_t i = 0; i < counts.size(); ++i)
    found.flat(i) = jl_min_dim(counts.flat(i), options);
  return found;
}

template <class E>
dense_array<double> jl_rule_of_thumb(const xt::xexpression<E>& n, double constant = 8) {
  dense_array<double> found = n;
  for (double& number : found) number = jl_rule_of_thumb(number, constant);
  return found;
}

template <class E>
dense_array<double> equivalent_head_dim(const xt::xexpression<E>& n, double head_dim,
                                        double n0 = 512) {
  dense_array<double> found = n;
  for (double& number : found) number = equivalent_head_dim(number, head_dim, n0);
  return found;
}

/// A random projection of points, and the options of its report.
struct jl_distortion_options {
  std::int64_t k = 0;  ///< dimensions to project to; has to be given
  /// Entries of the matrix times sqrt(k), with their random stream: normal, +-1, or sparse (sqrt(3)
  /// times +1, 0, -1 with probabilities 1/6, 2/3, 1/6 at the usual density: Achlioptas 2003).
  projection matrix = {};
  std::vector<double> eps = {0.5};  ///< each in (0, 1)
  jl_tail tail = jl_tail::relaxed;  ///< for the bounds
  bool keep_ratios = false;         ///< n (n - 1) / 2 numbers
  execution how = {};
};

/// Distances that a projection keeps, and the lemma's bounds.
struct jl_share {
  double eps;
  double outside;        ///< proportion of pairs whose squared distance changes by more than eps
  double outside_bound;  ///< bound of its mean over projections: 2 exp(-k rate / 2), at most 1
  bool keeps_all;        ///< whether no pair does
  double failure_bound;  ///< bound of the probability that a pair does: n (n - 1) exp(-k rate / 2),
                         ///< at most 1
};

/// Ratios of squared distances, after the projection over before; all NaN without pairs.
struct jl_distortion_result {
  double least, most, mean, variance;
  double distortion;             ///< the largest |ratio - 1|
  std::vector<jl_share> shares;  ///< one per eps
  /// With keep_ratios: of the pairs (0, 1), (0, 2) ... (1, 2) ..., computed in double from the
  /// points and their projections in float32.
  std::vector<double> ratios;
};

/// Projects points (n, dim), contiguous, and compares all distances. The mean is subtracted in
/// double, the points are scaled so that squares are in range, and then rounded to float32. So
/// neither an offset nor the unit costs digits; the ratio of a pair is off by about 2e-7 times the
/// distance of its points from the mean over their distance from each other. Points that are then
/// equal are refused: their distance has no ratio. Throws attnscale::interrupted.
ATTNSCALE_EXPORT jl_distortion_result jl_distortion(const float* points, std::int64_t n,
                                                    std::int64_t dim,
                                                    const jl_distortion_options& options);
ATTNSCALE_EXPORT jl_distortion_result jl_distortion(const double* points, std::int64_t n,
                                                    std::int64_t dim,
                                                    const jl_distortion_options& options);

/// Projects the points of an xtensor container or view of shape (n, dim).
template <float_array A>
jl_distortion_result jl_distortion(const A& points, const jl_distortion_options& options) {
  if (points.dimension() != 2)
    detail::refuse("points must have shape (n, dim), got " + std::to_string(points.dimension()) +
                   " axes");
  const xt::xtensor<typename A::value_type, 2, xt::layout_type::row_major> rows = points;
  return jl_distortion(rows.data(), static_cast<std::int64_t>(rows.shape(0)),
                       static_cast<std::int64_t>(rows.shape(1)), options);
}

}  // namespace attnscale
