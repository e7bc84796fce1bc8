// SPDX-License-Identifier: BSD-3-Clause
//
// The backward pass of the attentions of linear time, in their time and memory. grad_output is the
// gradient of a loss by the output and broadcasts to its shape; of what heads share, gradients are
// the sum over them. Results have the same bits for any number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "attnscale/broadcast_gradients.hpp"
#include "attnscale/check.hpp"
#include "attnscale/describe_linear.hpp"
#include "attnscale/linear_family.hpp"
#include "attnscale/linear_gradient_problem.hpp"
#include "attnscale/linear_options.hpp"
#include "attnscale/number_or_array.hpp"
#include "attnscale/strided_array.hpp"

namespace attnscale {

/// Of the shapes of their arrays. Where feature_map is given, query and key are the features.
template <class T>
struct linear_gradients_result {
  dense_array<T> query, key, value;
};

/// Of the shapes of their arrays.
template <class T>
struct ssd_gradients_result {
  dense_array<T> query, key, value;
  dense_array<double> log_decay;
};

namespace detail {

/// Room for the gradient of an input: of every head its own.
template <class T>
struct head_gradients {
  extents shape;  ///< of the input
  dense_array<T> heads;

  head_gradients(const strided_array& input, const extents& leading)
      : shape(input.shape()), heads(new_array<T>(leading, {input.extent(2), input.extent(1)})) {}

  dense_array<T> result(const extents& leading) && {
    if (shape == joined(leading, {strided_array(heads, 2).extent(2), shape.back()}))
      return std::move(heads);
    return sum_heads(heads, leading, shape, 2);
  }
};

/// Gradients of each head, where the core writes them.
struct gradient_arrays {
  strided_array grad, query, key, value;
  strided_array decay{}, of_decay{};
};

inline void run_linear_gradients(const linear_family& family, const linear_inputs& in,
                                 const gradient_arrays& arrays, std::optional<std::int64_t> offset,
                                 const execution& how) {
  linear_gradient_problem p{};
  p.form = family.form(in.head_dim(), in.value_dim());
  p.n_queries = in.n_queries(), p.n_keys = in.n_keys();
  p.is_causal = offset.has_value();
  p.offset = std::clamp(offset.value_or(0), -p.n_queries, p.n_keys);
  const std::vector<double> query_turn = family.turn(offset.value_or(0), p.n_queries);
  const std::vector<double> key_turn = family.turn(0, p.n_keys);
  p.query_turn = query_turn.data(), p.key_turn = key_turn.data();
  p.query = in.query.layout(), p.key = in.key.layout(), p.value = in.value.layout();
  p.grad = arrays.grad.layout(), p.query_out = arrays.query.layout();
  p.key_out = arrays.key.layout(), p.value_out = arrays.value.layout();
  for_each_index(in.leading, [&](const extents& index) {
    const auto at = [&](const strided_array& array) { return rows_at(array, index, in.leading); };
    const auto to = [&](const strided_array& array) { return const_cast<void*>(at(array)); };
    p.heads.push_back(
        {{at(in.query), at(in.key), at(in.value), static_cast<const double*>(at(arrays.decay))},
         at(arrays.grad),
         to(arrays.query),
         to(arrays.key),
         to(arrays.value),
         static_cast<double*>(to(arrays.of_decay))});
  });
  run(p, how);
}

inline void check_grad(const strided_array& grad, const linear_inputs& in) {
  check_broadcast("grad_output", grad, joined(in.leading, {in.n_queries(), in.value_dim()}),
                  "the output");
}

template <class Q, class K, class V, class G, class Options>
auto linear_gradients(const Q& query, const K& key, const V& value, const G& grad_output,
                      const Options& options) {
  require_float_arrays<Q, K, V, G>();
  using T = linear_compute_t<Q, K, V>;
  const auto [in, offset, family] = describe_linear(query, key, value, options);
  const strided_array grad(grad_output, 2);
  check_grad(grad, in);
  head_gradients<T> of_query(in.query, in.leading), of_key(in.key, in.leading),
      of_value(in.value, in.leading);
  run_linear_gradients(family, in,
                       {grad, {of_query.heads, 2}, {of_key.heads, 2}, {of_value.heads, 2}}, offset,
                       execution_of(options));
  return linear_gradients_result<T>{std::move(of_query).result(in.leading),
                                    std::move(of_key).result(in.leading),
                                    std::move(of_value).result(in.leading)};
}

}  // namespace detail

/// Gradients of sum(grad_output * efficient_attention(query, key, value, options)).
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V,
          detail::array_argument G>
auto efficient_attention_gradients(const Q& query, const K& key, const V& value,
                                   const G& grad_output,
                                   const efficient_attention_options& options = {}) {
  return detail::linear_gradients(query, key, value, grad_output, options);
}

/// Gradients of sum(grad_output * linear_attention(query, key, value, options)).
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V,
          detail::array_argument G>
auto linear_attention_gradients(const Q& query, const K& key, const V& value, const G& grad_output,
                                const linear_attention_options& options = {}) {
  return detail::linear_gradients(query, key, value, grad_output, options);
}

/// Gradients of sum(grad_output * cosformer_attention(query, key, value, options)).
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V,
          detail::array_argument G>
auto cosformer_attention_gradients(const Q& query, const K& key, const V& value,
                                   const G& grad_output,
                                   const cosformer_attention_options& options) {
  return detail::linear_gradients(query, key, value, grad_output, options);
}

/// Gradients of sum(grad_output * performer_attention(query, key, value, options)), whose
/// directions, given or drawn from the same stream, are constants.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V,
          detail::array_argument G>
auto performer_attention_gradients(const Q& query, const K& key, const V& value,
                                   const G& grad_output,
                                   const performer_attention_options& options = {}) {
  return detail::linear_gradients(query, key, value, grad_output, options);
}

/// Gradients of sum(grad_output * ssd(query, key, value, log_decay, options)).
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V,
          detail::array_argument G>
auto ssd_gradients(const Q& query, const K& key, const V& value,
                   const number_or_array<double>& log_decay, const G& grad_output,
                   const ssd_options& options = {}) {
  detail::require_float_arrays<Q, K, V, G>();
  using T = detail::linear_compute_t<Q, K, V>;
  const detail::linear_inputs in({query, 2}, {key, 2}, {value, 2}, options.enable_gqa);
  const std::optional<std::int64_t> offset = detail::paired_rows(in);
  detail::check_threads(options.num_threads);
  const dense_array<double> decay = detail::read_decay(log_decay, in.leading, in.n_queries());
  const detail::strided_array grad(grad_output, 2);
  detail::check_grad(grad, in);
  detail::head_gradients<T> of_query(in.query, in.leading), of_key(in.key, in.leading),
      of_value(in.value, in.leading);
  dense_array<double> of_decay = decay;
  detail::run_linear_gradients(detail::family_of(options, in.head_dim()), in,
                               {grad,
                                {of_query.heads, 2},
                                {of_key.heads, 2},
                                {of_value.heads, 2},
                                {decay, 1},
                                {of_decay, 1}},
                               offset, detail::execution_of(options));
  const auto& shape = log_decay.values().shape();
  const detail::extents given(shape.begin(), shape.end());
  return ssd_gradients_result<T>{
      std::move(of_query).result(in.leading), std::move(of_key).result(in.leading),
      std::move(of_value).result(in.leading), detail::sum_heads(of_decay, in.leading, given, 1)};
}

}  // namespace attnscale
