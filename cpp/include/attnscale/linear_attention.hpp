// SPDX-License-Identifier: BSD-3-Clause
//
// Linear-time attention over xtensor containers and views: a query reads sums over the keys, whose
// size does not depend on their number. Names and meanings follow the Python package,
// attnscale.variants.
//
//   auto whole = attnscale::linear_attention(q, k, v, {.is_causal = true});
//
// query is (..., heads, n_queries, head_dim), key (..., kv_heads, n_keys, head_dim) and value (...,
// kv_heads, n_keys, value_dim), as for attention(): of float or double, with any strides, read in
// place. Results are (..., heads, n_queries, value_dim), row-major, double if any input is, else
// float, with the same bits for any number of threads; rows that see no key are 0. Arguments that
// do not fit throw std::invalid_argument.
#pragma once

#include <cstdint>

#include "attnscale/detail/linear_call.hpp"
#include "attnscale/linear_attention_gradients.hpp"
#include "attnscale/linear_state.hpp"
#include "attnscale/performer_projection.hpp"

namespace attnscale {

namespace detail {

template <class Q, class K, class V, class Options>
auto linear_call(const Q& query, const K& key, const V& value, const Options& options) {
  require_float_arrays<Q, K, V>();
  const auto [in, offset, family] = linear_description({query, 2}, {key, 2}, {value, 2}, options);
  return attend_linear<linear_compute_t<Q, K, V>>(family, in, offset, execution_of(options),
                                                  {.first_query = offset.value_or(0)});
}

}  // namespace detail

/// softmax over channels(query) (softmax over keys(key)^T value), in O(n head_dim value_dim): Shen
/// et al. 2021, arXiv 1812.01243. For a causal query a channel's softmax runs over the visible
/// keys.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V>
auto efficient_attention(const Q& query, const K& key, const V& value,
                         const efficient_attention_options& options = {}) {
  return detail::linear_call(query, key, value, options);
}

/// sum_j phi(q) . phi(k_j) v_j / sum_j phi(q) . phi(k_j), in O(n features value_dim): Katharopoulos
/// et al. 2020, arXiv 2006.16236. Rows whose weights are all 0 are 0.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V>
auto linear_attention(const Q& query, const K& key, const V& value,
                      const linear_attention_options& options = {}) {
  return detail::linear_call(query, key, value, options);
}

/// Weights relu(q_i) . relu(k_j) cos(pi (i - j) / (2 max_length)), normalised: Qin et al. 2022,
/// arXiv 2202.08791. causal gives the position of the first query among the keys; without it, that
/// of the first key.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V>
auto cosformer_attention(const Q& query, const K& key, const V& value,
                         const cosformer_attention_options& options) {
  return detail::linear_call(query, key, value, options);
}

/// Softmax attention with exp(scale q . k) estimated by random features, in O(n features
/// value_dim): Choromanski et al. 2021, arXiv 2009.14794.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V>
auto performer_attention(const Q& query, const K& key, const V& value,
                         const performer_attention_options& options = {}) {
  return detail::linear_call(query, key, value, options);
}

/// y_i = sum over j <= i of exp(a_(j+1) + ... + a_i) (q_i . k_j) v_j for log-decays a <= 0 that
/// broadcast to (..., heads, n): state-space duality, Dao and Gu 2024, arXiv 2405.21060, section 6.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V>
auto ssd(const Q& query, const K& key, const V& value, const number_or_array<double>& log_decay,
         const ssd_options& options = {}) {
  detail::require_float_arrays<Q, K, V>();
  const linear_inputs in({query, 2}, {key, 2}, {value, 2}, options.enable_gqa);
  const std::int64_t offset = paired_rows(in);
  detail::check_threads(options.num_threads);
  const row_array<double> decay = read_decay(log_decay, in.leading, in.n_queries());
  return detail::attend_linear<detail::linear_compute_t<Q, K, V>>(
      family_of(options, in.head_dim()), in, offset, detail::execution_of(options),
      {.decay = {decay, 1}});
}

}  // namespace attnscale
