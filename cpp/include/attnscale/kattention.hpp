// SPDX-License-Identifier: BSD-3-Clause
//
// kattention: weights that fall with the distance of Qx + b and Ky, on the exact kernel. Names and
// meanings follow the Python package, attnscale.variants.
//
//   auto output = attnscale::kattention(x, q_weight, k_weight, {.scale = 2.0}, bias);
//   auto rows = attnscale::kattention_statistics(q, k, {.is_causal = true});
//
// Arrays are containers or views of float or double, with any strides. Arguments that do not fit
// throw std::invalid_argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "attnscale/attention.hpp"
#include "attnscale/detail/call_description.hpp"
#include "attnscale/detail/matrix_product.hpp"
#include "attnscale/detail/weight_matrix.hpp"
#include "attnscale/number_or_array.hpp"
#include "attnscale/options.hpp"

namespace attnscale {

/// A call whose keys have one more channel for their own term: (q + b, 1) . (k, -|k|^2 / 2).
ATTNSCALE_EXPORT call_description kattention_call(const strided_array& query,
                                                  const strided_array& key,
                                                  const strided_array& value,
                                                  const attention_options& options,
                                                  const number_or_array<double>& bias);

namespace detail {

template <class T>
attention_statistics_result<T> kattend(const strided_array& query, const strided_array& key,
                                       const strided_array& value, const attention_options& options,
                                       const number_or_array<double>& bias,
                                       const statistic_set& statistics) {
  return attend<T>(kattention_call(query, key, value, options, bias), statistics);
}

}  // namespace detail

/// softmax_j(scale (q_i + b - k_j / 2) . k_j) value: attention by distance, for given queries and
/// keys; the scores differ from -scale |q_i + b - k_j|^2 / 2 by a constant of the row. bias b is
/// (head_dim,) or (heads, head_dim), default 0. Options are those of attention(); a law that
/// measures the row is refused, a normalizer that compares scores with a constant uses the score
/// above. The score's rounding error grows with scale |k|^2: subtract what all keys have in common.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V>
auto kattention_heads(const Q& query, const K& key, const V& value,
                      const attention_options& options = {},
                      const number_or_array<double>& bias = {}) {
  detail::require_float_arrays<Q, K, V>();
  using T = detail::compute_t<Q, K, V>;
  return std::move(*detail::kattend<T>({query, 2}, {key, 2}, {value, 2}, options, bias, {}).output);
}

/// Output of kattention_heads() and statistics of every row of its weights, in one pass. lse,
/// max_score and mean_score are of the score above; for -scale |q + b - k|^2 / 2 subtract scale |q
/// + b|^2 / 2.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V>
auto kattention_statistics(const Q& query, const K& key, const V& value,
                           const attention_options& options = {},
                           const number_or_array<double>& bias = {},
                           const statistic_set& statistics = {statistic::lse, statistic::entropy}) {
  detail::require_float_arrays<Q, K, V>();
  using T = detail::compute_t<Q, K, V>;
  return detail::kattend<T>({query, 2}, {key, 2}, {value, 2}, options, bias, statistics);
}

/// Statistics without a value: no output.
template <detail::array_argument Q, detail::array_argument K>
auto kattention_statistics(const Q& query, const K& key, const attention_options& options = {},
                           const number_or_array<double>& bias = {},
                           const statistic_set& statistics = {statistic::lse, statistic::entropy}) {
  detail::require_float_arrays<Q, K>();
  return detail::kattend<detail::compute_t<Q, K>>({query, 2}, {key, 2}, {}, options, bias,
                                                  statistics);
}

/// y_i = sum_j softmax_j(scale E_ij) x_j with E_ij = (Q x_i + b - K x_j / 2) . K x_j, for x (...,
/// n, embed_dim) and weights Q and K of one shape, (head_dim, embed_dim) or (heads, head_dim,
/// embed_dim): (..., n, embed_dim), with an axis of heads before n if the weights have one, of x's
/// type. options.scale is the article's beta, default 1.
template <detail::array_argument X, detail::array_argument Q, detail::array_argument K>
auto kattention(const X& x, const Q& q_weight, const K& k_weight,
                const attention_options& options = {}, const number_or_array<double>& bias = {}) {
  detail::require_float_arrays<X, Q, K>();
  using T = detail::compute_t<X, Q, K>;
  const strided_array rows(x, 2), q(q_weight, 2), k(k_weight, 2);
  detail::check_vectors("x", rows);
  detail::check_weights(rows, q, k);
  detail::check_threads(options.num_threads);
  const execution how = detail::execution_of(options);
  const strided_array value = rows.with_axis_of_heads();
  extents leading = value.leading();
  leading.back() = q.leading_extent(1);
  const auto query = detail::matrix_product<T>(value, q.transposed(), leading, how);
  const auto key = detail::matrix_product<T>(value, k.transposed(), leading, how);
  attention_options given = options;
  if (!given.scale) given.scale = 1.0;
  dense_array<typename X::value_type> output = xt::cast<typename X::value_type>(
      *detail::kattend<T>({query, 2}, {key, 2}, value, given, bias, {}).output);
  if (q.dimension() == 3) return output;
  std::vector<std::size_t> shape(output.shape().begin(), output.shape().end());
  shape.erase(shape.end() - 3);
  output.reshape(shape);
  return output;
}

}  // namespace attnscale
