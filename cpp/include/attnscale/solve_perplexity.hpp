// SPDX-License-Identifier: BSD-3-Clause
//
// The perplexity search of t-SNE: widths of Gaussians that give each point a number of neighbours.
#pragma once

#include <cstdint>

#include "attnscale/detail/export.hpp"
#include "attnscale/detail/strided_array.hpp"
#include "attnscale/number_or_array.hpp"

namespace attnscale {

/// Tolerance and number of threads of the search.
struct perplexity_options {
  double tolerance = 0;  ///< of an entropy, in nats; 0: 1e-9 for double, else 1e-6
  int num_threads = 0;   ///< 0: attnscale::num_threads()
};

/// Affinities of a given perplexity; the other arrays have one number per row.
struct perplexity_solution {
  dense_array<double> affinities;  ///< t-SNE's p of j given i; rows add up to 1
  /// 1 / (2 sigma^2); NaN where no width has the perplexity: it exceeds the row's number of
  /// neighbours, or is below the number of equally near nearest ones.
  dense_array<double> beta;
  dense_array<double> perplexity;  ///< of the affinities; nearest possible if not feasible
  dense_array<bool> feasible;      ///< whether a beta exists
  dense_array<bool> converged;     ///< within the tolerance, by a beta in the range of double
};

/// Memory for the results, row-major.
struct perplexity_places {
  double *affinities, *beta, *perplexity;
  bool *feasible, *converged;
};

/// Refuses arrays that are not points (n, n_features), or squared distances (n, n) or (n, k).
ATTNSCALE_EXPORT void check_points(const strided_array& points, bool are_distances);
ATTNSCALE_EXPORT void run_perplexity(const strided_array& points, bool are_distances,
                                     const number_or_array<double>& perplexity,
                                     const perplexity_options& options,
                                     const perplexity_places& into);

namespace detail {

template <bool are_distances>
perplexity_solution affinities_of(const strided_array& points,
                                  const number_or_array<double>& perplexity,
                                  const perplexity_options& options) {
  check_points(points, are_distances);
  const std::int64_t n = points.extent(2), columns = are_distances ? points.extent(1) : n;
  const auto numbers = [&] { return new_array<double>({n}, {}); };
  const auto answers = [&] { return new_array<bool>({n}, {}); };
  perplexity_solution found{new_array<double>({n}, {columns}), numbers(), numbers(), answers(),
                            answers()};
  run_perplexity(points, are_distances, perplexity, options,
                 {found.affinities.data(), found.beta.data(), found.perplexity.data(),
                  found.feasible.data(), found.converged.data()});
  return found;
}

}  // namespace detail

/// Conditional affinities of t-SNE, (n, n) with a zero diagonal, from points (n, n_features).
/// perplexity is the exponential of each row's entropy, one number or one per row.
template <float_array A>
perplexity_solution solve_perplexity(const A& points,
                                     const number_or_array<double>& perplexity = 30.0,
                                     const perplexity_options& options = {}) {
  return detail::affinities_of<false>({points, 2}, perplexity, options);
}

/// Conditional affinities from squared distances: (n, n), whose diagonal is left out, or (n, k)
/// from each point to k others, with affinities (n, k).
template <float_array A>
perplexity_solution solve_perplexity_of_distances(const A& squared,
                                                  const number_or_array<double>& perplexity = 30.0,
                                                  const perplexity_options& options = {}) {
  return detail::affinities_of<true>({squared, 2}, perplexity, options);
}

}  // namespace attnscale
