// SPDX-License-Identifier: BSD-3-Clause
//
// Linformer: keys and values projected along the sequence to a fixed number of rows. Names and
// meanings follow the Python package, attnscale.variants.
//
//   auto output = attnscale::linformer_attention(q, k, v, projection);  // (rows, n_keys)
//
// Arrays as for attention(), of float or double, with any strides, read in place. Arguments that do
// not fit throw std::invalid_argument.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "attnscale/attention.hpp"
#include "attnscale/detail/matrix_product.hpp"
#include "attnscale/detail/strided_array.hpp"
#include "attnscale/options.hpp"

namespace attnscale {

/// Options as in attention_options. There is no causal form: every projected row mixes all keys.
struct linformer_attention_options {
  scale_option scale{};  ///< a law's n counts projected rows
  bool enable_gqa = false;
  int num_threads = 0;
  std::function<bool()> interrupted{};
};

namespace detail {

inline void check_sequence_projection(const char* name, const strided_array& projection,
                                      std::int64_t n_keys) {
  if (projection.dimension() < 2 || projection.extent(1) != n_keys)
    refuse(std::string(name) + " must have the shape (rows, n_keys) with n_keys = " +
           text_of(n_keys) + ": it was made for one length; got " + text_of(projection.shape()));
}

template <class T>
dense_array<T> linformer(const strided_array& query, const strided_array& key,
                         const strided_array& value, const strided_array& key_projection,
                         const strided_array& value_projection,
                         const linformer_attention_options& options) {
  leading_shape({{"query", &query}, {"key", &key}, {"value", &value}}, options.enable_gqa);
  check_matrices(query, key, value);
  check_threads(options.num_threads);
  check_sequence_projection("key_projection", key_projection, key.extent(2));
  check_sequence_projection("value_projection", value_projection, key.extent(2));
  if (key_projection.extent(2) != value_projection.extent(2))
    refuse("key_projection and value_projection must have the same number of rows, got " +
           text_of(key_projection.extent(2)) + " and " + text_of(value_projection.extent(2)));
  const execution how = execution_of(options);
  const auto keys =
      matrix_product<T>(key_projection, key,
                        broadcast_leading({"key_projection", &key_projection}, {"key", &key}), how);
  const auto values = matrix_product<T>(
      value_projection, value,
      broadcast_leading({"value_projection", &value_projection}, {"value", &value}), how);
  const attention_options exact{.scale = options.scale,
                                .enable_gqa = options.enable_gqa,
                                .num_threads = options.num_threads,
                                .interrupted = options.interrupted};
  return *attend<T>(call_description(query, {keys, 2}, {values, 2}, exact), {}).output;
}

}  // namespace detail

/// softmax(scale query (E key)^T) (F value), in O(n rows head_dim), for E = key_projection and F =
/// value_projection of shape (rows, n_keys) or (kv_heads, rows, n_keys): Wang et al. 2020, arXiv
/// 2006.04768.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V,
          detail::array_argument E, detail::array_argument F>
auto linformer_attention(const Q& query, const K& key, const V& value, const E& key_projection,
                         const F& value_projection,
                         const linformer_attention_options& options = {}) {
  detail::require_float_arrays<Q, K, V, E, F>();
  return detail::linformer<detail::compute_t<Q, K, V>>(
      {query, 2}, {key, 2}, {value, 2}, {key_projection, 2}, {value_projection, 2}, options);
}

/// Linformer attention with one projection for keys and values.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V,
          detail::array_argument E>
auto linformer_attention(const Q& query, const K& key, const V& value, const E& key_projection,
                         const linformer_attention_options& options = {}) {
  return linformer_attention(query, key, value, key_projection, key_projection, options);
}

}  // namespace attnscale
