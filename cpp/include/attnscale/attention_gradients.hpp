// SPDX-License-Identifier: BSD-3-Clause
//
// The backward pass of attention and of statistics of its weights. Nothing of size n_queries *
// n_keys is stored; results have the same bits for any number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attnscale/attention.hpp"
#include "attnscale/check.hpp"
#include "attnscale/describe.hpp"
#include "attnscale/number_or_array.hpp"
#include "attnscale/problem.hpp"
#include "attnscale/results.hpp"
#include "attnscale/strided_array.hpp"

namespace attnscale {

/// Gradients of a loss by statistics of the rows; they broadcast to (..., heads, n_queries).
struct statistic_gradients {
  number_or_array<double> lse{}, entropy{}, max_score{}, mean_score{}, score_variance{},
      concentration{}, max_weight{};
};

/// What attention_gradients returns.
template <class T>
struct attention_gradients_result {
  dense_array<T> query, key, value;           ///< of the shapes of their arrays
  dense_array<double> scale;                  ///< of each row: (..., heads, n_queries)
  std::optional<dense_array<double>> sink{};  ///< of each row's sink, if there is one
  std::optional<dense_array<double>> bias{};  ///< of each row's bias of a sigmoid
  std::optional<double> alpha{};              ///< of entmax
};

namespace detail {

/// An array of the shape of another, all 0.
template <class T, class A>
dense_array<T> zeros_like(const A& array) {
  dense_array<T> zeros = dense_array<T>::from_shape(
      std::vector<std::size_t>(array.shape().begin(), array.shape().end()));
  zeros.fill(T(0));
  return zeros;
}

/// The gradients of statistics as rows of T; those that are not given stay null.
template <class T>
class gradient_rows_of_statistics {
 public:
  gradient_rows_of_statistics(const statistic_gradients& given, const extents& leading,
                              std::int64_t n_queries)
      : shape_(joined(leading, {n_queries})) {
    using enum statistic;
    add(lse, "lse", given.lse);
    add(entropy, "entropy", given.entropy);
    add(max_score, "max_score", given.max_score);
    add(mean_score, "mean_score", given.mean_score);
    add(score_variance, "score_variance", given.score_variance);
    add(concentration, "concentration", given.concentration);
    add(max_weight, "max_weight", given.max_weight);
  }
  bool any() const { return !rows_.empty(); }
  row_outputs places() {
    row_outputs all;
    for (auto& [which, rows] : rows_) all[which] = rows.data();
    return all;
  }

 private:
  void add(statistic which, const char* name, const number_or_array<double>& given) {
    if (!given) return;
    const strided_array values(given.values(), 1);
    check_broadcast(name, values, shape_, "(..., heads, n_queries)");
    const dense_array<T> rows = xt::cast<T>(given.values());
    dense_array<T> all =
        dense_array<T>::from_shape(std::vector<std::size_t>(shape_.begin(), shape_.end()));
    all = xt::broadcast(rows, all.shape());
    rows_.emplace_back(which, std::move(all));
  }

  extents shape_;
  std::vector<std::pair<statistic, dense_array<T>>> rows_;
};

/// Lets the problem read the statistics of a forward pass, which have one number for each of
/// `rows`.
template <class T>
void use_statistics(const attention_statistics_result<T>& forward, const extents& rows,
                    row_outputs& places) {
  for_each_statistic(forward, [&](statistic which, const auto& array) {
    if (!array) return;
    const extents shape(array->shape().begin(), array->shape().end());
    if (shape != rows)
      refuse("forward must be of the same call, whose rows are " + text_of(rows) + ", got " +
             std::string(name_of(which)) + " of shape " + text_of(shape));
    places[which] = const_cast<void*>(static_cast<const void*>(array->data()));
  });
}

}  // namespace detail

/// Gradients of sum(grad_output * output) + sum(of.lse * lse) + ...; those of statistics are of a
/// softmax, with or without a sink. forward: what attention_statistics gave for the same call; what
/// it has is not computed again. Those of max_score and max_weight go to the first key with the
/// largest score.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V,
          detail::array_argument G>
auto attention_gradients(
    const Q& query, const K& key, const V& value, const G& grad_output,
    const attention_options& options = {}, const statistic_gradients& of = {},
    const attention_statistics_result<detail::compute_t<Q, K, V>>* forward = nullptr) {
  detail::require_float_arrays<Q, K, V, G>();
  using T = detail::compute_t<Q, K, V>;
  const detail::call_description call({query, 2}, {key, 2}, {value, 2}, options);
  const detail::extents& leading = call.leading();
  const detail::strided_array grad(grad_output, 2);
  const detail::extents wanted = detail::joined(leading, {call.n_queries(), call.value_dim()});
  if (grad.shape() != wanted)
    detail::refuse("grad_output must have the shape of the output, " + detail::text_of(wanted) +
                   ", got " + detail::text_of(grad.shape()));
  attention_gradients_result<T> result{detail::zeros_like<T>(query), detail::zeros_like<T>(key),
                                       detail::zeros_like<T>(value),
                                       detail::new_array<double>(leading, {call.n_queries()})};
  result.scale.fill(0);
  detail::gradient_rows_of_statistics<T> rows(of, leading, call.n_queries());
  const normalizer rule = options.normalizer.rule;
  if (rule != normalizer::softmax && rows.any())
    detail::refuse("statistics have gradients under a softmax alone, with or without a sink");
  gradient_problem problem;
  problem.value = call.value().layout();
  problem.value_dim = call.value_dim();
  call.fill(problem, detail::element_type_of<T>);
  call.fill_rule(problem, {});
  problem.cotangents = rows.places();
  problem.d_scale = result.scale.data();
  if (options.normalizer.of_row.sink) {
    result.sink = dense_array<double>(result.scale);
    problem.d_sink = result.sink->data();
  }
  dense_array<double> of_rule;  // of each row
  if (rule == normalizer::sigmoid || rule == normalizer::entmax) {
    of_rule = result.scale;
    (rule == normalizer::sigmoid ? problem.d_bias : problem.d_alpha) = of_rule.data();
  }
  detail::strided_array output, d_query(result.query, 2), d_key(result.key, 2),
      d_value(result.value, 2);
  if (forward) {
    if (forward->output) output = detail::strided_array(*forward->output, 2);
    if (output && output.shape() != wanted)
      detail::refuse("forward must be of the same call, got an output of shape " +
                     detail::text_of(output.shape()));
    detail::use_statistics(*forward, detail::joined(leading, {call.n_queries()}),
                           problem.statistics);
  }
  problem.output = output.layout();
  problem.grad_output = grad.layout();
  problem.d_query = d_query.layout();
  problem.d_key = d_key.layout();
  problem.d_value = d_value.layout();
  const auto place = [&](const detail::strided_array& array, const detail::extents& index) {
    return const_cast<void*>(array.at(index, leading));
  };
  std::size_t head = 0;
  detail::for_each_index(leading, [&](const detail::extents& index) {
    problem.heads[head++].output = place(output, index);
    problem.gradients.push_back({grad.at(index, leading), place(d_query, index),
                                 place(d_key, index), place(d_value, index)});
  });
  run(problem, call.how());
  if (problem.d_alpha) result.alpha = xt::sum(of_rule)();
  if (problem.d_bias) result.bias = std::move(of_rule);
  return result;
}

}  // namespace attnscale
