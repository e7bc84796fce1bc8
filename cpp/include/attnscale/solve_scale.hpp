// SPDX-License-Identifier: BSD-3-Clause
//
// The scale at which attention weights have a given entropy: of each row, or of rows that share
// one.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attnscale/attention.hpp"
#include "attnscale/solve_mean.hpp"

namespace attnscale {

/// Rows that share a scale: those of a head (and batch entry), or all of them.
enum class scale_per : std::uint8_t { head, all };

/// Arrays (..., heads, n_queries); of rows that share a scale (..., heads) or (), and means over
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

namespace detail {

/// Refuses options under which entropy need not fall with the scale.
inline void check_falling_entropy(const attention_options& options) {
  if (options.scale) refuse("solve_scale finds the scale, got also options.scale");
  if (options.softcap)
    refuse("solve_scale takes no softcap: under it entropy need not fall with the scale, got " +
           text_of(*options.softcap));
  require_softmax(options, "solve_scale");
  refuse_tables(options, "solve_scale", "under it entropy need not fall with the scale");
}

/// A bias is as harmful; a mask of 0 and what hides is only another way to hide keys.
inline void check_no_bias(const score_problem& problem, const extents& leading,
                          const strided_array& mask) {
  if (problem.mask_type != mask_kind::additive) return;
  const double hiding = hiding_number[static_cast<int>(problem.attn_mask.type)];
  for_each_index(leading, [&](const extents& index) {
    const void* data = mask.at(index, leading);
    for (std::int64_t i = 0; i < (problem.attn_mask.row ? problem.n_queries : 1); ++i)
      for (std::int64_t j = 0; j < (problem.attn_mask.column ? problem.n_keys : 1); ++j) {
        const std::ptrdiff_t at = i * problem.attn_mask.row + j * problem.attn_mask.column;
        const double x = number_at(data, problem.attn_mask.type, at);
        if (x != 0 && !(x <= hiding))
          refuse("attn_mask of solve_scale must hold 0 and -inf only, got " + text_of(x));
      }
  });
}

/// One target for each entry of a shape, whose axes `axes` names.
inline std::vector<double> read_targets(const number_or_array<double>& target, const extents& shape,
                                        const char* axes) {
  if (!target) refuse("target_entropy must be a number or an array, got none");
  const strided_array given(target.values(), 0);
  check_broadcast("target_entropy", given, shape, axes);
  for (const double x : target.values())
    if (!(x >= 0) || std::isinf(x))
      refuse("target_entropy must be finite and at least 0, got " + text_of(x));
  std::vector<double> targets;
  for_each_index(shape, [&](const extents& index) {
    targets.push_back(*static_cast<const double*>(given.at(index, shape)));
  });
  return targets;
}

/// The tolerance of a search in the arithmetic of T; 0 stands for the default.
template <class T>
double read_tolerance(double tolerance) {
  if (!(tolerance >= 0) || std::isinf(tolerance))
    refuse("tolerance must be greater than 0, or 0 for the default, got " + text_of(tolerance));
  return tolerance > 0 ? tolerance : sizeof(T) == sizeof(double) ? 1e-9 : 1e-6;
}

/// New arrays of a shape.
template <class T>
scale_solution<T> new_solution(const extents& shape) {
  const auto make = [&]<class E>(E) { return new_array<E>(shape, {}); };
  return {make(double{}), make(T{}),    make(T{}),           make(T{}),
          make(bool{}),   make(bool{}), make(std::int64_t{})};
}

/// The scale of each row of a call, for one target a row.
template <class T>
scale_solution<T> solve_rows(const call_description& call, const attention_options& options,
                             const std::vector<double>& targets, double tolerance) {
  auto result = new_solution<T>(joined(call.leading(), {call.n_queries()}));
  solve_problem problem;
  call.fill(problem);
  check_no_bias(problem, call.leading(), options.attn_mask.array());
  problem.tolerance = tolerance;
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

}  // namespace detail

/// The least scale >= 0 of each row at which its entropy is at most the target, in nats.
/// `target_entropy` broadcasts to (..., heads, n_queries); `tolerance` 0 is 1e-9 for double, else
/// 1e-6.
template <detail::array_argument Q, detail::array_argument K>
auto solve_scale(const Q& query, const K& key, const number_or_array<double>& target_entropy,
                 const attention_options& options = {}, double tolerance = 0) {
  detail::require_attention_arrays<Q, K>();
  using T = detail::compute_t<Q, K>;
  const detail::call_description call({query, 2}, {key, 2}, {}, options);
  detail::check_falling_entropy(options);
  const double limit = detail::read_tolerance<T>(tolerance);
  const std::vector<double> targets =
      detail::read_targets(target_entropy, detail::joined(call.leading(), {call.n_queries()}),
                           "(..., heads, n_queries)");
  return detail::solve_rows<T>(call, options, targets, limit);
}

/// The same for rows that share a scale: the mean entropy of those that see a key meets the target,
/// which broadcasts to (..., heads) or is one number. One pass over all rows a step.
template <detail::array_argument Q, detail::array_argument K>
scale_solution<double> solve_scale(const Q& query, const K& key,
                                   const number_or_array<double>& target_entropy, scale_per per,
                                   const attention_options& options = {}, double tolerance = 0) {
  detail::require_attention_arrays<Q, K>();
  using T = detail::compute_t<Q, K>;
  const detail::call_description call({query, 2}, {key, 2}, {}, options);
  detail::check_falling_entropy(options);
  detail::check_enumerator("per", per, scale_per::all);
  const double limit = detail::read_tolerance<T>(tolerance);
  const detail::extents shape = per == scale_per::head ? call.leading() : detail::extents{};
  const std::vector<double> targets =
      detail::read_targets(target_entropy, shape, per == scale_per::head ? "(..., heads)" : "()");
  // Nothing is above infinite entropy: this finds the limits of the rows and searches nothing.
  const auto n_rows = static_cast<std::size_t>(
      detail::count_entries(detail::joined(call.leading(), {call.n_queries()})));
  const auto rows = detail::solve_rows<T>(
      call, options, std::vector<double>(n_rows, std::numeric_limits<double>::infinity()), limit);
  detail::shared_scales<T> groups(call, targets.size());
  std::vector<detail::mean_search> searches;
  for (std::size_t g = 0; g < targets.size(); ++g)
    searches.emplace_back(targets[g], limit, groups.mean(rows.lowest.data(), g),
                          groups.mean(rows.highest.data(), g), call.standard_scale());
  groups.search(searches);
  auto result = detail::new_solution<double>(shape);
  for (std::size_t g = 0; g < targets.size(); ++g) searches[g].write(result, g);
  return result;
}

}  // namespace attnscale
