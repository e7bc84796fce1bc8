// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/johnson_lindenstrauss.hpp"

#include <algorithm>
#include <cmath>

#include "attnscale/detail/refuse.hpp"
#include "experiments/projected_points.hpp"
#include "machine/thread_pool.hpp"

namespace attnscale {
namespace {

using namespace detail;

double rate_of(double eps, jl_tail tail) {
  check_enumerator("tail", tail, jl_tail::chi_square);
  return tail == jl_tail::relaxed ? eps * eps / 2 - eps * eps * eps / 3 : eps - std::log1p(eps);
}

/// ln(n (n - 1)), which does not overflow; minus infinity for one vector.
double log_pairs(double n) { return std::log(n) + std::log(n - 1); }

jl_share share_of(double eps, std::int64_t outside, std::int64_t n, std::int64_t k, jl_tail tail) {
  const double count = static_cast<double>(n), pairs = count * (count - 1) / 2;
  const double exponent = -static_cast<double>(k) * rate_of(eps, tail) / 2;
  return {eps, static_cast<double>(outside) / pairs, std::min(1.0, 2 * std::exp(exponent)),
          outside == 0, std::min(1.0, std::exp(log_pairs(count) + exponent))};
}

double squared_distance(const float* a, const float* b, std::int64_t dim) {
  double sum = 0;
  for (std::int64_t i = 0; i < dim; ++i) {
    const double change = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += change * change;
  }
  return sum;
}

std::vector<double> all_ratios(const float* before, std::int64_t dim, const float* after,
                               std::int64_t k, std::int64_t n, const execution& how) {
  std::vector<double> ratios(static_cast<std::size_t>(n * (n - 1) / 2));
  parallel_for(n, how, [&](std::int64_t i, const stop_signal&) {
    double* out = ratios.data() + i * (2 * n - i - 1) / 2;
    for (std::int64_t j = i + 1; j < n; ++j) {
      const double was = squared_distance(before + i * dim, before + j * dim, dim);
      const double is = squared_distance(after + i * k, after + j * k, k);
      *out++ = was == is ? 1 : is / was;
    }
  });
  return ratios;
}

/// Checks that do not depend on the points.
void check(std::int64_t n, const jl_distortion_options& options) {
  check_at_least("k", options.k, 1);
  check_matrix_fits("k", options.k, n);
  for (const double eps : options.eps) check_in_unit_interval("eps", eps);
  check_enumerator("tail", options.tail, jl_tail::chi_square);
  if (options.keep_ratios) check_matrix_fits("n", n, n);
}

}  // namespace

std::int64_t jl_min_dim(double n, const jl_options& options) {
  check_finite_from("n", n, 1);
  check_in_unit_interval("eps", options.eps);
  const double rate = rate_of(options.eps, options.tail);
  const bool bounded = !std::isnan(options.failure_probability);
  double dimension = 4 * std::log(n) / rate;
  if (bounded) {
    check_in_unit_interval("failure_probability", options.failure_probability);
    dimension = 2 * (log_pairs(n) - std::log(options.failure_probability)) / rate;
  }
  if (!(dimension < 0x1p62))
    refuse("eps must give a dimension that fits int64, got " + text_of(options.eps));
  return static_cast<std::int64_t>(std::ceil(std::max(dimension, 1.0)));
}

double jl_rule_of_thumb(double n, double constant) {
  check_greater("constant", constant, 0);
  check_finite_from("n", n, 1);
  return constant * std::log(n);
}

double equivalent_head_dim(double n, double head_dim, double n0) {
  check_greater("n0", n0, 1);
  check_finite_from("head_dim", head_dim, 1);
  check_finite_from("n", n, 1);
  return head_dim * std::log(n) / std::log(n0);
}

jl_distortion_result detail::distort(const float* points, std::int64_t n, std::int64_t dim,
                                     const jl_distortion_options& options) {
  check(n, options);
  std::vector<float> projected(static_cast<std::size_t>(n * options.k));
  project(projected.data(), options.k, points, n, dim, options.matrix, options.how);
  const distance_ratios found =
      compare_distances(points, dim, projected.data(), options.k, n, options.eps, options.how);
  jl_distortion_result result{found.least, found.most, found.mean, found.variance, 0, {}, {}};
  result.distortion = std::max(found.most - 1, 1 - found.least);
  for (std::size_t i = 0; i < options.eps.size(); ++i)
    result.shares.push_back(share_of(options.eps[i], found.outside[i], n, options.k, options.tail));
  if (options.keep_ratios)
    result.ratios = all_ratios(points, dim, projected.data(), options.k, n, options.how);
  return result;
}

jl_distortion_result jl_distortion(const float* points, std::int64_t n, std::int64_t dim,
                                   const jl_distortion_options& options) {
  return distort(projected_points(points, n, dim).data(), n, dim, options);
}

jl_distortion_result jl_distortion(const double* points, std::int64_t n, std::int64_t dim,
                                   const jl_distortion_options& options) {
  return distort(projected_points(points, n, dim).data(), n, dim, options);
}

}  // namespace attnscale
