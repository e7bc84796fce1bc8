// SPDX-License-Identifier: BSD-3-Clause
//
// The C++ API: exact attention over xtensor containers and views, and statistics of its weights
// from the same streaming pass. Names and meanings follow the Python package.
//
// query is (..., heads, n_queries, head_dim), key (..., kv_heads, n_keys, head_dim) and value (...,
// kv_heads, n_keys, value_dim), of float, double, float16 or bfloat16, with any strides; they are
// read in place. Leading axes broadcast; an array of two axes is one head. Results are row-major,
// double if any input is, else float; the output of 16-bit inputs has their type. Arguments that do
// not fit throw std::invalid_argument.
#pragma once

#include <cmath>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "attnscale/detail/call_description.hpp"
#include "attnscale/detail/strided_array.hpp"
#include "attnscale/detail/xtensor_compat.hpp"
#include "attnscale/merge_states.hpp"
#include "attnscale/options.hpp"
#include "attnscale/problem.hpp"
#include "attnscale/results.hpp"

namespace attnscale {

namespace detail {

/// Allocates the wanted statistics and points the problem at them.
template <class Result>
void make_statistics(const call_description& call, const statistic_set& wanted, Result& result,
                     row_outputs& rows) {
  for_each_statistic(result, [&](statistic which, auto& array) {
    if (!wanted.contains(which)) return;
    using element = typename std::remove_cvref_t<decltype(array)>::value_type::value_type;
    array = new_array<element>(call.rows(), {});
    rows[which] = array->data();
  });
}

/// One pass: the output if there is a value, and the wanted statistics.
template <class T, class Output = T>
attention_statistics_result<T, Output> attend(call_description call, const statistic_set& wanted) {
  attention_statistics_result<T, Output> result;
  row_outputs rows;
  if (call.arrays().value) {
    result.output = new_array<Output>(call.rows(), {call.value_dim()});
    call.set_output({*result.output, 2});
  }
  make_statistics(call, wanted, result, rows);
  call.attend(rows, wanted);
  return result;
}

}  // namespace detail

/// softmax(scale * query key^T) value, or the weights of another normalizer: (..., heads,
/// n_queries, value_dim).
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V>
auto attention(const Q& query, const K& key, const V& value,
               const attention_options& options = {}) {
  detail::require_attention_arrays<Q, K, V>();
  const call_description call({query, 2}, {key, 2}, {value, 2}, options);
  return *detail::attend<detail::compute_t<Q, K, V>, detail::output_t<Q, K, V>>(call, {}).output;
}

/// The output and the statistics of every row of weights.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V>
auto attention_statistics(const Q& query, const K& key, const V& value,
                          const attention_options& options = {},
                          const statistic_set& statistics = {statistic::lse, statistic::entropy}) {
  detail::require_attention_arrays<Q, K, V>();
  const call_description call({query, 2}, {key, 2}, {value, 2}, options);
  return detail::attend<detail::compute_t<Q, K, V>, detail::output_t<Q, K, V>>(call, statistics);
}

/// Statistics of every row of weights without a value: no output, half of the work.
template <detail::array_argument Q, detail::array_argument K>
auto attention_statistics(const Q& query, const K& key, const attention_options& options = {},
                          const statistic_set& statistics = {statistic::lse, statistic::entropy}) {
  detail::require_attention_arrays<Q, K>();
  const call_description call({query, 2}, {key, 2}, {}, options);
  return detail::attend<detail::compute_t<Q, K>>(call, statistics);
}

/// Entropy of every row of weights, in nats: (..., heads, n_queries).
template <detail::array_argument Q, detail::array_argument K>
auto attention_entropy(const Q& query, const K& key, const attention_options& options = {}) {
  detail::require_attention_arrays<Q, K>();
  return *attention_statistics(query, key, options, {statistic::entropy}).entropy;
}

/// Statistics at many scales from one pass over q . k. Do not set options.scale.
template <detail::array_argument Q, detail::array_argument K>
auto entropy_curve(const Q& query, const K& key, const std::vector<double>& scales,
                   const attention_options& options = {}) {
  detail::require_attention_arrays<Q, K>();
  using T = detail::compute_t<Q, K>;
  const call_description call({query, 2}, {key, 2}, {}, options);
  require_softmax(options, "entropy_curve");
  if (options.scale)
    detail::refuse(
        "entropy_curve takes its scales from the argument scales, got "
        "also options.scale");
  for (const double scale : scales)
    if (!std::isfinite(scale))
      detail::refuse("scales must be finite, got " + detail::text_of(scale));
  const auto n_scales = static_cast<std::int64_t>(scales.size());
  const auto make = [&] { return detail::new_array<T>(call.rows(), {n_scales}); };
  entropy_curve_result<T> result{scales, make(), make(), make(), make()};
  curve_problem problem;
  call.fill(problem);
  problem.scales = scales;
  problem.entropy = result.entropy.data();
  problem.lse = result.lse.data();
  problem.mean = result.mean.data();
  problem.variance = result.variance.data();
  run(problem, call.how());
  return result;
}

/// Scales from a container or view with one axis.
template <detail::array_argument Q, detail::array_argument K, class S>
requires std::derived_from<S, xt::xexpression<S>>
auto entropy_curve(const Q& query, const K& key, const S& scales,
                   const attention_options& options = {}) {
  if (scales.dimension() != 1)
    detail::refuse("scales must have one axis, got " + detail::text_of(scales.dimension()));
  return entropy_curve(query, key, std::vector<double>(scales.begin(), scales.end()), options);
}

/// Number of visible keys of each row: (..., heads, n_queries).
template <detail::array_argument Q, detail::array_argument K>
dense_array<std::int64_t> count_visible(const Q& query, const K& key,
                                        const attention_options& options = {}) {
  detail::require_attention_arrays<Q, K>();
  const call_description call({query, 2}, {key, 2}, {}, options);
  auto counts = detail::new_array<std::int64_t>(call.rows(), {});
  score_problem problem;
  call.fill(problem);
  count_visible(problem, counts.data(), call.how());
  return counts;
}

/// Attention to a part of the keys. Masks and alignment refer to this part: its first key is key 0.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V>
auto attention_state(const Q& query, const K& key, const V& value,
                     const attention_options& options = {}) {
  detail::require_attention_arrays<Q, K, V>();
  require_softmax(options, "attention_state");
  require_whole_sequence(options);
  using Output = detail::output_t<Q, K, V>;
  attention_state_result<detail::compute_t<Q, K, V>, Output> state;
  call_description call({query, 2}, {key, 2}, {value, 2}, options);
  state.output = detail::new_array<Output>(call.rows(), {call.value_dim()});
  call.set_output({state.output, 2});
  auto lse = detail::new_array<double>(call.rows(), {}), mean = lse;
  row_outputs rows;
  rows.wide = true;
  rows[statistic::lse] = lse.data();
  rows[statistic::mean_score] = mean.data();
  call.attend(rows, {statistic::lse, statistic::mean_score});
  state.set_rows(lse, mean);
  return state;
}

}  // namespace attnscale
