// SPDX-License-Identifier: BSD-3-Clause
//
// The backward pass of attention and of statistics of its weights. Nothing of size n_queries *
// n_keys is stored; results have the same bits for any number of threads.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
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
      concentration{}, max_weight{}, renyi2{};
};

/// Gradients that are computed only if they are asked for. One whose argument the call does not
/// have is not returned.
struct wanted_gradients {
  bool attn_mask = false;  ///< of a mask of numbers
  bool distance_scale = false, distance_bias = false;
};

/// Gradients of query, key and value have the shapes and types of their arrays.
template <class Q, class K = Q, class V = K>
struct attention_gradients_result {
  dense_array<Q> query;
  dense_array<K> key;
  dense_array<V> value;                       ///< without a value: of shape (0,)
  dense_array<double> scale;                  ///< of each row: (..., heads, n_queries)
  std::optional<dense_array<double>> sink{};  ///< of each row's sink, if there is one
  std::optional<dense_array<double>> bias{};  ///< of each row's bias of a sigmoid
  std::optional<double> alpha{};              ///< of entmax
  /// Of the shape of the mask, summed where it was broadcast; 0 where it hides the key.
  std::optional<dense_array<double>> attn_mask{};
  /// Of the shapes of the tables; of a function, of what it returned.
  std::optional<dense_array<double>> distance_scale{}, distance_bias{};
};

namespace detail {

/// Row-major zeros.
template <class T>
dense_array<T> zeros_of(const extents& shape) {
  dense_array<T> zeros = new_array<T>(shape, {});
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
    add(renyi2, "renyi2", given.renyi2);
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
template <class Forward>
void use_statistics(const Forward& forward, const extents& rows, row_outputs& places) {
  for_each_statistic(forward, [&](statistic which, const auto& array) {
    if (!array) return;
    const extents shape(array->shape().begin(), array->shape().end());
    if (shape != rows)
      refuse("forward must be of the same call, whose rows are " + text_of(rows) + ", got " +
             std::string(name_of(which)) + " of shape " + text_of(shape));
    places[which] = const_cast<void*>(static_cast<const void*>(array->data()));
  });
}

/// One backward pass in the arithmetic of T: arrays of the call as they were given, what comes in,
/// and the gradients that come out.
template <class T>
class backward_pass {
 public:
  backward_pass(const call_description& call, const attention_options& options,
                const statistic_gradients& of, const wanted_gradients& wanted)
      : call_(call),
        options_(options),
        wanted_(wanted),
        rows_(joined(call.leading(), {call.n_queries()})),
        cotangents_(of, call.leading(), call.n_queries()) {
    if (!traits_of(options.normalizer.rule).is_exponential && cotangents_.any())
      refuse("statistics have gradients under a softmax alone, with or without a sink");
    problem_.value = call.value().layout();
    problem_.value_dim = call.value_dim();
    call.fill(problem_);
    call.fill_rule(problem_, {});
    problem_.cotangents = cotangents_.places();
  }
  backward_pass(const backward_pass&) = delete;  // the problem refers to its arrays
  backward_pass& operator=(const backward_pass&) = delete;

  void read_grad_output(const strided_array& grad) {
    grad_ = grad;
    if (grad_.shape() != output_shape())
      refuse("grad_output must have the shape of the output, " + text_of(output_shape()) +
             ", got " + text_of(grad_.shape()));
  }

  void refuse_nothing() const {
    if (!grad_ && !cotangents_.any())
      refuse("grad_output or the gradient of a statistic must be given, got none of them");
  }

  template <class Forward>
  void read_forward(const Forward& forward) {
    if (forward.output) output_ = strided_array(*forward.output, 2);
    if (output_ && output_.shape() != output_shape())
      refuse("forward must be of the same call, got an output of shape " +
             text_of(output_.shape()));
    use_statistics(forward, rows_, problem_.statistics);
  }

  /// Gradients of the arrays, whose types the result has, and of everything else.
  template <class Result>
  void differentiate(const strided_array& query, const strided_array& key, Result& result) {
    dense_array<T> d_query = zeros_of<T>(query.shape()), d_key = zeros_of<T>(key.shape());
    dense_array<T> d_value = zeros_of<T>(grad_ ? call_.value().shape() : extents{0});
    result.scale = zeros_of<double>(rows_);
    place_rows(result);
    place_heads({d_query, 2}, {d_key, 2}, grad_ ? strided_array(d_value, 2) : strided_array());
    run(problem_, call_.how());
    if (options_.qk_norm != row_norm::none) {
      through_norm(query, options_.qk_norm, d_query);
      through_norm(key, options_.qk_norm, d_key);
    }
    finish(result);
    give(d_query, result.query);
    give(d_key, result.key);
    give(d_value, result.value);
  }

 private:
  extents output_shape() const { return joined(rows_, {call_.value_dim()}); }

  template <class Given>
  static void give(dense_array<T>& found, dense_array<Given>& result) {
    if constexpr (std::is_same_v<T, Given>)
      result = std::move(found);
    else
      result = xt::cast<Given>(found);
  }

  /// Where the gradients of what each row has one of go.
  template <class Result>
  void place_rows(Result& result) {
    problem_.d_scale = result.scale.data();
    const normalizer_traits& traits = traits_of(options_.normalizer.rule);
    std::optional<dense_array<double>>* const to = traits.number == row_number::sink ? &result.sink
                                                   : traits.number == row_number::bias
                                                       ? &result.bias
                                                       : nullptr;
    if (to && options_.normalizer.number) {
      *to = result.scale;
      problem_.d_number = (*to)->data();
    }
    if (!traits.solves_threshold) return;
    of_alpha_ = result.scale;
    problem_.d_alpha = of_alpha_.data();
  }

  void place_heads(const strided_array& d_query, const strided_array& d_key,
                   const strided_array& d_value) {
    const strided_array mask = options_.attn_mask.array();
    if (wanted_.attn_mask && options_.attn_mask.kind() == mask_kind::additive)
      d_attn_mask_ = zeros_of<T>(mask.shape());
    const strided_array d_attn_mask =
        d_attn_mask_ ? strided_array(*d_attn_mask_, 2) : strided_array();
    d_tables_ = call_.form().zeros(wanted_.distance_scale && options_.distance_scale,
                                   wanted_.distance_bias && options_.distance_bias);
    problem_.output = output_.layout();
    problem_.grad_output = grad_.layout();
    problem_.d_query = d_query.layout();
    problem_.d_key = d_key.layout();
    problem_.d_value = d_value.layout();
    problem_.d_attn_mask = d_attn_mask.layout();
    const extents& leading = call_.leading();
    const auto place = [&](const strided_array& array, const extents& index) {
      return const_cast<void*>(array.at(index, leading));
    };
    std::size_t head = 0;
    for_each_index(leading, [&](const extents& index) {
      problem_.heads[head++].output = place(output_, index);
      problem_.gradients.push_back({grad_.at(index, leading),
                                    place(d_query, index),
                                    place(d_key, index),
                                    place(d_value, index),
                                    place(d_attn_mask, index),
                                    {place(d_tables_.distance_scale.matrix, index),
                                     place(d_tables_.distance_bias.matrix, index)}});
    });
  }

  template <class Result>
  void finish(Result& result) {
    clear_unseen(result.scale);
    if (problem_.d_alpha) result.alpha = xt::sum(of_alpha_)();
    if (d_attn_mask_) result.attn_mask = xt::cast<double>(*d_attn_mask_);
    if (wanted_.distance_scale && options_.distance_scale)
      result.distance_scale =
          call_.form().gradient_of(options_.distance_scale, d_tables_.distance_scale, true);
    if (wanted_.distance_bias && options_.distance_bias)
      result.distance_bias =
          call_.form().gradient_of(options_.distance_bias, d_tables_.distance_bias, false);
  }

  /// Of a query with a NaN that sees no key the gradient of the scale is 0, too.
  void clear_unseen(dense_array<double>& scale) const {
    bool finite = true;
    for (const double each : scale) finite &= std::isfinite(each);
    if (finite) return;
    std::vector<std::int64_t> visible(scale.size());
    count_visible(problem_, visible.data(), call_.how());
    for (std::size_t row = 0; row < visible.size(); ++row)
      if (visible[row] == 0) scale.flat(row) = 0;
  }

  const call_description& call_;
  const attention_options& options_;
  const wanted_gradients wanted_;
  const extents rows_;
  gradient_rows_of_statistics<T> cotangents_;
  strided_array grad_, output_;
  dense_array<double> of_alpha_;  // of each row
  std::optional<dense_array<T>> d_attn_mask_;
  score_tables<table_matrix> d_tables_;
  gradient_problem problem_;
};

}  // namespace detail

/// Gradients of sum(grad_output * output) + sum(of.lse * lse) + ...; those of statistics are of a
/// softmax, with or without a sink. forward: what attention_statistics gave for the same call; what
/// it has is not computed again. Those of max_score and max_weight go to the first key with the
/// largest score. Under a law the gradient of the scale is that of the numbers that it gives.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V,
          detail::array_argument G>
auto attention_gradients(
    const Q& query, const K& key, const V& value, const G& grad_output,
    const attention_options& options = {}, const statistic_gradients& of = {},
    const attention_statistics_result<detail::compute_t<Q, K, V>, detail::output_t<Q, K, V>>*
        forward = nullptr,
    const wanted_gradients& wanted = {}) {
  detail::require_attention_arrays<Q, K, V, G>();
  const detail::strided_array q(query, 2), k(key, 2);
  const detail::call_description call(q, k, {value, 2}, options);
  detail::backward_pass<detail::compute_t<Q, K, V>> pass(call, options, of, wanted);
  pass.read_grad_output({grad_output, 2});
  if (forward) pass.read_forward(*forward);
  attention_gradients_result<typename Q::value_type, typename K::value_type, typename V::value_type>
      result;
  pass.differentiate(q, k, result);
  return result;
}

/// The same without a value and an output: gradients of sum(of.lse * lse) + ... alone.
template <detail::array_argument Q, detail::array_argument K>
auto attention_gradients(
    const Q& query, const K& key, const attention_options& options, const statistic_gradients& of,
    const attention_statistics_result<detail::compute_t<Q, K>>* forward = nullptr,
    const wanted_gradients& wanted = {}) {
  detail::require_attention_arrays<Q, K>();
  const detail::strided_array q(query, 2), k(key, 2);
  const detail::call_description call(q, k, {}, options);
  detail::backward_pass<detail::compute_t<Q, K>> pass(call, options, of, wanted);
  pass.refuse_nothing();
  if (forward) pass.read_forward(*forward);
  attention_gradients_result<typename Q::value_type, typename K::value_type> result;
  pass.differentiate(q, k, result);
  return result;
}

}  // namespace attnscale
