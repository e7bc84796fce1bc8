// SPDX-License-Identifier: BSD-3-Clause
//
// The scale at which attention weights have a given entropy: per row, or for rows that share one
// scale.
#pragma once

#include <cstdint>
#include <optional>

#include "attnscale/attention.hpp"

namespace attnscale {

/// Rows that share a scale: those of a head (and batch entry), or all of them.
enum class scale_per : std::uint8_t { head, all };

/// Arrays (..., heads, n_queries); for rows that share a scale (..., heads) or (), with means over
/// the rows that see a key.
template <class T>
struct scale_solution {
  dense_array<double> scale;       ///< 0 if the target is out of reach above, infinity if below
  dense_array<T> entropy;          ///< at this scale, in nats
  dense_array<T> lowest, highest;  ///< ln(keys tied at the top), ln(visible keys)
  dense_array<bool> converged;     ///< entropy is the target, to the tolerance
  dense_array<bool> feasible;      ///< lowest <= target <= highest, to the tolerance
  dense_array<std::int64_t> iterations;
};

/// Options of the search, and memory for its results.
struct solve_request {
  const number_or_array<double>& target_entropy;
  double tolerance;
  std::optional<scale_per> per{};  ///< absent: one scale per row
};

/// Shape of the results. Refuses options that the search does not take.
ATTNSCALE_EXPORT extents check_solve(const call_description& call, const solve_request& request);

/// Runs the search; `into` has the results of solve_problem, in double where rows share a scale.
ATTNSCALE_EXPORT void run_solve(const call_description& call, const solve_request& request,
                                solve_problem& into);

namespace detail {

template <class T>
scale_solution<T> solve(const call_description& call, const solve_request& request) {
  const extents shape = check_solve(call, request);
  const auto make = [&]<class E>(E) { return new_array<E>(shape, {}); };
  scale_solution<T> result{make(double{}), make(T{}),    make(T{}),           make(T{}),
                           make(bool{}),   make(bool{}), make(std::int64_t{})};
  solve_problem into;
  into.scale = result.scale.data();
  into.entropy = result.entropy.data();
  into.lowest = result.lowest.data();
  into.highest = result.highest.data();
  into.converged = result.converged.data();
  into.feasible = result.feasible.data();
  into.iterations = result.iterations.data();
  run_solve(call, request, into);
  return result;
}

}  // namespace detail

/// The least scale >= 0 of each row at which its entropy is at most the target, in nats.
/// `target_entropy` broadcasts to (..., heads, n_queries); `tolerance` 0 is 1e-9 for double, else
/// 1e-6.
template <detail::array_argument Q, detail::array_argument K>
auto solve_scale(const Q& query, const K& key, const number_or_array<double>& target_entropy,
                 const attention_options& options = {}, double tolerance = 0) {
  detail::require_attention_arrays<Q, K>();
  return detail::solve<detail::compute_t<Q, K>>({{query, 2}, {key, 2}, {}, options},
                                                {target_entropy, tolerance});
}

/// The least scale of rows that share one: the mean entropy of the rows that see a key meets the
/// target, which broadcasts to (..., heads) or is one number. One pass over all rows per step.
template <detail::array_argument Q, detail::array_argument K>
scale_solution<double> solve_scale(const Q& query, const K& key,
                                   const number_or_array<double>& target_entropy, scale_per per,
                                   const attention_options& options = {}, double tolerance = 0) {
  detail::require_attention_arrays<Q, K>();
  return detail::solve<double>({{query, 2}, {key, 2}, {}, options},
                               {target_entropy, tolerance, per});
}

}  // namespace attnscale
