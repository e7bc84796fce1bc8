// SPDX-License-Identifier: BSD-3-Clause
//
// The scale at which each row of attention weights has a given entropy. Meanings are those of the
// Python package's solve_scale with per="row".
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "attnscale/attention.hpp"

namespace attnscale {

/// Arrays (..., heads, n_queries).
template <class T>
struct scale_solution {
  dense_array<double> scale;       ///< 0 if the target is out of reach above, infinity if below
  dense_array<T> entropy;          ///< at this scale, in nats
  dense_array<T> lowest, highest;  ///< ln(keys tied at the top), ln(visible keys)
  dense_array<bool> converged;     ///< entropy is the target, to the tolerance
  dense_array<bool> feasible;      ///< lowest <= target <= highest, to the tolerance
  dense_array<std::int64_t> iterations;
};

namespace detail {

/// Refuses options under which entropy need not fall with the scale.
inline void check_falling_entropy(const attention_options& options) {
  if (options.scale) refuse("solve_scale finds the scale, got also options.scale");
  if (options.softcap)
    refuse("solve_scale takes no softcap: under it entropy need not fall with the scale, got " +
           text_of(*options.softcap));
}

/// A bias is as harmful; a mask of 0 and -inf is only another way to hide keys.
inline void check_no_bias(const score_problem& problem, const extents& leading,
                          const strided_array& mask) {
  if (problem.mask_type != mask_kind::additive) return;
  for_each_index(leading, [&](const extents& index) {
    const void* data = mask.at(index, leading);
    for (std::int64_t i = 0; i < (problem.mask.row ? problem.n_queries : 1); ++i)
      for (std::int64_t j = 0; j < (problem.mask.column ? problem.n_keys : 1); ++j) {
        const std::ptrdiff_t at = i * problem.mask.row + j * problem.mask.column;
        const double x = problem.mask.type == element_type::float64
                             ? static_cast<const double*>(data)[at]
                             : static_cast<double>(static_cast<const float*>(data)[at]);
        if (x != 0 && !(std::isinf(x) && x < 0))
          refuse("attn_mask of solve_scale must hold 0 and -inf only, got " + text_of(x));
      }
  });
}

/// One target a row.
inline std::vector<double> read_targets(const number_or_array<double>& target,
                                        const call_description& call) {
  if (!target) refuse("target_entropy must be a number or an array, got none");
  const strided_array given(target.values(), 1);
  check_broadcast("target_entropy", given, joined(call.leading(), {call.n_queries()}),
                  "(..., heads, n_queries)");
  for (const double x : target.values())
    if (!(x >= 0) || std::isinf(x))
      refuse("target_entropy must be finite and at least 0, got " + text_of(x));
  std::vector<double> targets;
  for_each_index(call.leading(), [&](const extents& index) {
    const auto* row = static_cast<const double*>(given.at(index, call.leading()));
    for (std::int64_t i = 0; i < call.n_queries(); ++i) targets.push_back(row[i * given.stride(1)]);
  });
  return targets;
}

}  // namespace detail

/// The least scale >= 0 of each row at which its entropy is at most the target, in nats.
/// `target_entropy` broadcasts to (..., heads, n_queries); `tolerance` 0 is 1e-9 for double, else
/// 1e-6.
template <detail::array_argument Q, detail::array_argument K>
auto solve_scale(const Q& query, const K& key, const number_or_array<double>& target_entropy,
                 const attention_options& options = {}, double tolerance = 0) {
  detail::require_float_arrays<Q, K>();
  using T = detail::compute_t<Q, K>;
  const detail::call_description call({query, 2}, {key, 2}, {}, options);
  detail::check_falling_entropy(options);
  if (!(tolerance >= 0) || std::isinf(tolerance))
    detail::refuse("tolerance must be greater than 0, or 0 for the default, got " +
                   detail::text_of(tolerance));
  const std::vector<double> targets = detail::read_targets(target_entropy, call);
  const auto make = [&]<class E>(E) {
    return detail::new_array<E>(call.leading(), {call.n_queries()});
  };
  scale_solution<T> result{make(double{}), make(T{}),    make(T{}),           make(T{}),
                           make(bool{}),   make(bool{}), make(std::int64_t{})};
  solve_problem problem;
  call.fill(problem, detail::element_type_of<T>);
  detail::check_no_bias(problem, call.leading(), options.attn_mask.array());
  problem.tolerance = tolerance > 0 ? tolerance : sizeof(T) == sizeof(double) ? 1e-9 : 1e-6;
  problem.scale_row = 1;
  for (std::size_t h = 0; h < problem.heads.size(); ++h)
    problem.heads[h].scale = targets.data() + static_cast<std::int64_t>(h) * call.n_queries();
  problem.scale = result.scale.data();
  problem.entropy = result.entropy.data();
  problem.lowest = result.lowest.data();
  problem.highest = result.highest.data();
  problem.converged = result.converged.data();
  problem.feasible = result.feasible.data();
  problem.iterations = result.iterations.data();
  run(problem, call.how());
  return result;
}

}  // namespace attnscale
