// SPDX-License-Identifier: BSD-3-Clause
//
// Relay nodes: a few nodes read the sequence by softmax averages, interact through an energy, and
// send messages back. Names and meanings follow the Python package, attnscale.variants.
//
//   const auto nodes = attnscale::relay_attention(x, centres).output;
//   const auto gradient = attnscale::relay_energy_gradient(nodes, weight);
//   const auto message = attnscale::relay_message(x, centres, gradient);  // dE/dx
//
// Arrays are containers or views of float or double, with any strides, read in place. Arguments
// that do not fit throw std::invalid_argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "attnscale/attention.hpp"
#include "attnscale/attention_gradients.hpp"
#include "attnscale/detail/strided_array.hpp"
#include "attnscale/merge_states.hpp"
#include "attnscale/options.hpp"
#include "attnscale/relay_energy.hpp"
#include "attnscale/results.hpp"

namespace attnscale {

/// Options of relay_attention, as in attention_options.
struct relay_attention_options {
  int num_threads = 0;
  std::function<bool()> interrupted{};
};

/// Gradients, with the shapes and types of their arrays.
template <class X, class C, class V>
struct relay_gradients_result {
  dense_array<X> x;
  dense_array<C> centres;
  dense_array<V> value;
};

namespace detail {

/// Options for the attention of the nodes to the sequence, with scale 1.
inline attention_options exact_options(const relay_attention_options& options) {
  return {.scale = 1.0, .num_threads = options.num_threads, .interrupted = options.interrupted};
}

}  // namespace detail

/// The nodes B_k = sum_i A_ik value_i, with A_ik = softmax over i of centre_k . x_i, in O(n nodes
/// dim), for x (..., n, dim), centres (..., nodes, dim) and value (..., n, value_dim): output (...,
/// nodes, value_dim), lse and entropy of the weights over the sequence. States over parts of the
/// sequence merge with merge_states().
template <detail::array_argument X, detail::array_argument C, detail::array_argument V>
auto relay_attention(const X& x, const C& centres, const V& value,
                     const relay_attention_options& options = {}) {
  return attention_state(centres, x, value, detail::exact_options(options));
}

/// The nodes with value = x.
template <detail::array_argument X, detail::array_argument C>
auto relay_attention(const X& x, const C& centres, const relay_attention_options& options = {}) {
  return relay_attention(x, centres, x, options);
}

/// Gradients of sum(grad_output * relay_attention(x, centres, value).output); grad_output
/// broadcasts to the nodes' shape. If value is x, the gradient by x is the sum of both.
template <detail::array_argument X, detail::array_argument C, detail::array_argument V,
          detail::array_argument G>
auto relay_attention_gradients(const X& x, const C& centres, const V& value, const G& grad_output,
                               const relay_attention_options& options = {}) {
  detail::require_float_arrays<X, C, V, G>();
  using T = detail::compute_t<X, C, V>;
  const attention_options exact = detail::exact_options(options);
  const call_description call({centres, 2}, {x, 2}, {value, 2}, exact);
  const auto grad = detail::whole_grad<T>(grad_output, joined(call.leading(), {call.n_queries()}),
                                          call.value_dim(), "the nodes");
  auto found = attention_gradients(centres, x, value, grad, exact);
  return relay_gradients_result<typename X::value_type, typename C::value_type,
                                typename V::value_type>{
      xt::cast<typename X::value_type>(found.key), xt::cast<typename C::value_type>(found.query),
      xt::cast<typename V::value_type>(found.value)};
}

/// dE/dx_i = sum_k A_ik (G_k + (G_k . (x_i - B_k)) centre_k) for G = dE/dB of the nodes B of x, as
/// from relay_energy_gradient(): (..., n, dim), in double. Memory is O(n nodes).
template <detail::array_argument X, detail::array_argument C, detail::array_argument G>
dense_array<double> relay_message(const X& x, const C& centres, const G& gradient,
                                  const relay_attention_options& options = {}) {
  detail::require_float_arrays<X, C, G>();
  using wide = std::common_type_t<double, typename X::value_type>;  // double, for every X
  const dense_array<wide> rows = xt::cast<double>(x), mu = xt::cast<double>(centres),
                          g = xt::cast<double>(gradient);
  const auto state = relay_attention(rows, mu, options);
  return detail::dense<double>(relay_message_of({rows, 2}, {mu, 2}, {g, 2}, {state.output, 2},
                                                state.lse.data(), detail::execution_of(options)));
}

}  // namespace attnscale
