// SPDX-License-Identifier: BSD-3-Clause
//
// The backward pass of linear-time attention, in the same time and memory. grad_output is the
// gradient of a loss by the output and broadcasts to its shape; gradients are summed where heads
// share an array. Results have the same bits for any number of threads.
#pragma once

#include <cstdint>
#include <utility>

#include "attnscale/detail/linear_call.hpp"

namespace attnscale {

/// Gradients, with the shapes of their arrays. With linear_feature_map::given, query and key are
/// the features.
template <class T>
struct linear_gradients_result {
  dense_array<T> query, key, value;
};

/// Gradients of ssd(), with the shapes of their arrays.
template <class T>
struct ssd_gradients_result {
  dense_array<T> query, key, value;
  dense_array<double> log_decay;
};

namespace detail {

/// Memory for the gradient of an input, separate for every head.
template <class T>
struct head_gradients {
  extents shape;  ///< shape of the input
  dense_array<T> heads;

  head_gradients(const strided_array& input, const extents& leading)
      : shape(input.shape()), heads(new_array<T>(leading, {input.extent(2), input.extent(1)})) {}

  dense_array<T> result(const extents& leading) && {
    if (shape == strided_array(heads, 2).shape()) return std::move(heads);
    return dense<T>(sum_heads({heads, 2}, leading, shape));
  }
};

template <class Q, class K, class V, class G, class Options>
auto linear_gradients(const Q& query, const K& key, const V& value, const G& grad_output,
                      const Options& options) {
  require_float_arrays<Q, K, V, G>();
  using T = linear_compute_t<Q, K, V>;
  const auto [in, offset, family] = linear_description({query, 2}, {key, 2}, {value, 2}, options);
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

/// Gradients of sum(grad_output * performer_attention(query, key, value, options)); the directions,
/// given or drawn from the same stream, are constants.
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
  const linear_inputs in({query, 2}, {key, 2}, {value, 2}, options.enable_gqa);
  const std::int64_t offset = paired_rows(in);
  detail::check_threads(options.num_threads);
  const row_array<double> decay = read_decay(log_decay, in.leading, in.n_queries());
  const strided_array grad(grad_output, 2);
  check_grad(grad, in);
  detail::head_gradients<T> of_query(in.query, in.leading), of_key(in.key, in.leading),
      of_value(in.value, in.leading);
  row_array<double> of_decay = decay;
  run_linear_gradients(family_of(options, in.head_dim()), in,
                       {grad,
                        {of_query.heads, 2},
                        {of_key.heads, 2},
                        {of_value.heads, 2},
                        {decay, 1},
                        {of_decay, 1}},
                       offset, detail::execution_of(options));
  const auto& shape = log_decay.rows().extents;
  return ssd_gradients_result<T>{
      std::move(of_query).result(in.leading), std::move(of_key).result(in.leading),
      std::move(of_value).result(in.leading),
      detail::dense<double>(sum_heads({of_decay, 1}, in.leading, {shape.begin(), shape.end()}))};
}

}  // namespace attnscale
