// SPDX-License-Identifier: BSD-3-Clause
//
// The backward pass of attention and of statistics of its weights. Nothing of size n_queries *
// n_keys is stored; results have the same bits for any number of threads.
#pragma once

#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "attnscale/attention.hpp"
#include "attnscale/detail/call_description.hpp"
#include "attnscale/detail/strided_array.hpp"
#include "attnscale/normalizer_traits.hpp"
#include "attnscale/number_or_array.hpp"
#include "attnscale/problem.hpp"
#include "attnscale/results.hpp"

namespace attnscale {

/// Gradients of a loss by row statistics; they broadcast to (..., heads, n_queries).
struct statistic_gradients {
  number_or_array<double> lse{}, entropy{}, max_score{}, mean_score{}, score_variance{},
      concentration{}, max_weight{}, renyi2{};
};

/// Optional gradients to compute. A gradient by an argument that the call does not have is absent.
struct wanted_gradients {
  bool attn_mask = false;  ///< by an additive mask
  bool distance_scale = false, distance_bias = false;
};

/// Gradients; those of query, key and value have the shapes and types of their arrays.
template <class Q, class K = Q, class V = K>
struct attention_gradients_result {
  dense_array<Q> query;
  dense_array<K> key;
  dense_array<V> value;                       ///< without a value: shape (0,)
  dense_array<double> scale;                  ///< per row: (..., heads, n_queries)
  std::optional<dense_array<double>> sink{};  ///< per row, with a sink only
  std::optional<dense_array<double>> bias{};  ///< per row, sigmoid only
  std::optional<double> alpha{};              ///< entmax only
  /// Shape of the mask, summed where it was broadcast; 0 where it hides the key.
  std::optional<dense_array<double>> attn_mask{};
  /// Shapes of the tables, or of the values of a function.
  std::optional<dense_array<double>> distance_scale{}, distance_bias{};
};

/// Inputs of a backward pass besides the call.
struct backward_inputs {
  const statistic_gradients& of;
  strided_array grad_output{};  ///< absent: the loss does not depend on the output
  strided_array output{};       ///< from the forward pass, like the rows; absent: computed again
  std::vector<std::pair<statistic, strided_array>> rows{};
};

/// Memory for the gradients: zero before, row-major, with the shapes of the given arrays.
struct backward_outputs {
  strided_array query, key, value{}, attn_mask{};      ///< of the compute type
  double *scale, *number = nullptr, *alpha = nullptr;  ///< per row
  score_tables<bool> tables{};                         ///< the wanted ones
};

/// Computes the gradients; query and key are those given to the call. Returns the gradients of the
/// wanted tables.
ATTNSCALE_EXPORT score_tables<row_array<double>> run_backward(call_description& call,
                                                              const strided_array& query,
                                                              const strided_array& key,
                                                              const backward_inputs& in,
                                                              const backward_outputs& out);

namespace detail {

/// Row-major array of zeros.
template <class T>
dense_array<T> zeros_of(const extents& shape) {
  dense_array<T> zeros = new_array<T>(shape, {});
  zeros.fill(T(0));
  return zeros;
}

/// Gradient by an output of shape (rows..., value_dim); `what` is its name in messages.
template <class T, class G>
dense_array<T> whole_grad(const G& grad_output, const extents& rows, std::int64_t value_dim,
                          const char* what) {
  check_broadcast("grad_output", strided_array(grad_output, 2), joined(rows, {value_dim}), what);
  dense_array<T> whole = new_array<T>(rows, {value_dim});
  whole = xt::cast<T>(xt::broadcast(grad_output, whole.shape()));
  return whole;
}

template <class T, class Given>
void give(dense_array<T>& found, dense_array<Given>& result) {
  if constexpr (std::is_same_v<T, Given>)
    result = std::move(found);
  else
    result = xt::cast<Given>(found);
}

/// Statistics and output of a forward pass.
template <class Forward>
void read_forward(const Forward& forward, backward_inputs& in) {
  if (forward.output) in.output = strided_array(*forward.output, 2);
  for_each_statistic(forward, [&](statistic which, const auto& array) {
    if (array) in.rows.emplace_back(which, strided_array(*array, 1));
  });
}

/// Gradients computed in T, in the types of the result.
template <class T, class Result>
void differentiate(call_description& call, const strided_array& query, const strided_array& key,
                   const backward_inputs& in, const wanted_gradients& wanted, Result& result) {
  const attention_options& options = call.options();
  const normalizer_traits& traits = traits_of(options.normalizer.rule);
  auto d_query = zeros_of<T>(query.shape()), d_key = zeros_of<T>(key.shape());
  auto d_value = zeros_of<T>(in.grad_output ? call.arrays().value.shape() : extents{0});
  std::optional<dense_array<T>> d_mask;
  result.scale = zeros_of<double>(call.rows());
  backward_outputs out{.query = {d_query, 2}, .key = {d_key, 2}, .scale = result.scale.data()};
  if (in.grad_output) out.value = strided_array(d_value, 2);
  if (wanted.attn_mask && options.attn_mask.kind() == mask_kind::additive)
    out.attn_mask =
        strided_array(d_mask.emplace(zeros_of<T>(options.attn_mask.array().shape())), 2);
  out.tables = {wanted.distance_scale && options.distance_scale,
                wanted.distance_bias && options.distance_bias};
  if (options.normalizer.number &&
      (traits.number == row_number::sink || traits.number == row_number::bias))
    out.number = (traits.number == row_number::sink ? result.sink : result.bias)
                     .emplace(result.scale)
                     .data();
  dense_array<double> of_alpha;
  if (traits.solves_threshold) out.alpha = (of_alpha = result.scale).data();
  const score_tables<row_array<double>> tables = run_backward(call, query, key, in, out);
  if (out.alpha)
    result.alpha = std::accumulate(of_alpha.data(), of_alpha.data() + of_alpha.size(), 0.0);
  if (d_mask) result.attn_mask = xt::cast<double>(*d_mask);
  if (out.tables.distance_scale) result.distance_scale = dense<double>(tables.distance_scale);
  if (out.tables.distance_bias) result.distance_bias = dense<double>(tables.distance_bias);
  give(d_query, result.query);
  give(d_key, result.key);
  give(d_value, result.value);
}

}  // namespace detail

/// Gradients of sum(grad_output * output) + sum(of.lse * lse) + ...; gradients of statistics exist
/// for a softmax, with or without a sink. forward: the result of attention_statistics for the same
/// call, which saves computing it again. Gradients of max_score and max_weight go to the first key
/// with the largest score. Under a law the gradient of the scale is by the scale of each row.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V,
          detail::array_argument G>
auto attention_gradients(
    const Q& query, const K& key, const V& value, const G& grad_output,
    const attention_options& options = {}, const statistic_gradients& of = {},
    const attention_statistics_result<detail::compute_t<Q, K, V>, detail::output_t<Q, K, V>>*
        forward = nullptr,
    const wanted_gradients& wanted = {}) {
  detail::require_attention_arrays<Q, K, V, G>();
  const strided_array q(query, 2), k(key, 2);
  call_description call(q, k, {value, 2}, options);
  backward_inputs in{.of = of, .grad_output = {grad_output, 2}};
  if (forward) detail::read_forward(*forward, in);
  attention_gradients_result<typename Q::value_type, typename K::value_type, typename V::value_type>
      result;
  detail::differentiate<detail::compute_t<Q, K, V>>(call, q, k, in, wanted, result);
  return result;
}

/// Gradients of sum(of.lse * lse) + ... without a value and an output.
template <detail::array_argument Q, detail::array_argument K>
auto attention_gradients(
    const Q& query, const K& key, const attention_options& options, const statistic_gradients& of,
    const attention_statistics_result<detail::compute_t<Q, K>>* forward = nullptr,
    const wanted_gradients& wanted = {}) {
  detail::require_attention_arrays<Q, K>();
  const strided_array q(query, 2), k(key, 2);
  call_description call(q, k, {}, options);
  backward_inputs in{.of = of};
  if (forward) detail::read_forward(*forward, in);
  attention_gradients_result<typename Q::value_type, typename K::value_type> result;
  detail::differentiate<detail::compute_t<Q, K>>(call, q, k, in, wanted, result);
  return result;
}

}  // namespace attnscale
