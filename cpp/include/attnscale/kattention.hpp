// SPDX-License-Identifier: BSD-3-Clause
//
// kattention: weights that fall with the distance of Qx + b and Ky, on the exact kernel. Names and
// meanings are those of the Python package, attnscale.variants.
//
//   auto output = attnscale::kattention(x, q_weight, k_weight, {.scale = 2.0}, bias);
//   auto rows = attnscale::kattention_statistics(q, k, {.is_causal = true});
//
// Arrays are containers or views of float or double, with any strides. Arguments that do not fit
// are a std::invalid_argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "attnscale/attention.hpp"
#include "attnscale/check.hpp"
#include "attnscale/describe.hpp"
#include "attnscale/matrix_product.hpp"
#include "attnscale/number_or_array.hpp"
#include "attnscale/options.hpp"
#include "attnscale/weight_matrix.hpp"

namespace attnscale {

namespace detail {

inline void refuse_row_measures(const attention_options& options) {
  if (!options.scale.law()) return;
  const scale_law& law = *options.scale.law();
  const n_means meaning = law.meaning();
  if (meaning == n_means::row_entropy || meaning == n_means::row_gaps ||
      meaning == n_means::row_spread)
    refuse("scale='" + std::string(law.name()) +
           "' measures rows of dot products, and kattention's scores are others; pass a number, an "
           "array or a law of n");
}

/// Rows of T with room for one more channel.
template <class T>
dense_array<T> with_room(const strided_array& rows) {
  const extents leading = leading_of(rows);
  const std::int64_t dim = rows.extent(1);
  const matrix_layout layout = rows.layout();
  dense_array<T> wide = new_array<T>(leading, {rows.extent(2), dim + 1});
  T* out = wide.data();
  for_each_index(leading, [&](const extents& index) {
    const void* const head = rows.at(index, leading);
    for (std::int64_t i = 0; i < rows.extent(2); ++i, ++out)
      for (std::int64_t c = 0; c < dim; ++c)
        *out++ = static_cast<T>(number_at(head, layout.type, i * layout.row + c * layout.column));
  });
  return wide;
}

/// (q + b, 1).
template <class T>
dense_array<T> with_one(const strided_array& query, const number_or_array<double>& bias) {
  dense_array<T> wide = with_room<T>(query);
  const strided_array rows(wide, 2), steps(bias.values(), 1);
  const extents leading = leading_of(rows);
  const std::int64_t dim = rows.extent(1) - 1;
  if (bias) check_broadcast("bias", steps, joined(leading, {dim}), "(..., heads, head_dim)");
  T* out = wide.data();
  for_each_index(leading, [&](const extents& index) {
    const auto* const step = static_cast<const double*>(steps.at(index, leading));
    for (std::int64_t i = 0; i < rows.extent(2); ++i, ++out) {
      for (std::int64_t c = 0; c < dim; ++c, ++out)
        if (bias) *out = static_cast<T>(static_cast<double>(*out) + step[c * steps.stride(1)]);
      *out = 1;
    }
  });
  return wide;
}

/// (k, -|k|^2 / 2).
template <class T>
dense_array<T> with_half_square(const strided_array& key) {
  dense_array<T> wide = with_room<T>(key);
  const auto channels = static_cast<std::size_t>(wide.shape().back());
  for (std::size_t row = 0; row < wide.size(); row += channels) {
    T* const numbers = wide.data() + row;
    double square = 0;
    for (std::size_t c = 0; c + 1 < channels; ++c)
      square += static_cast<double>(numbers[c]) * static_cast<double>(numbers[c]);
    numbers[channels - 1] = static_cast<T>(-0.5 * square);
  }
  return wide;
}

/// One call with the term of the key as one more channel: (q + b, 1) . (k, -|k|^2 / 2).
template <class T>
attention_statistics_result<T> kattend(const strided_array& query, const strided_array& key,
                                       const strided_array& value, const attention_options& options,
                                       const number_or_array<double>& bias,
                                       const statistic_set& statistics) {
  refuse_row_measures(options);
  call_description call(query, key, value, options);
  const dense_array<T> queries = with_one<T>(call.query(), bias);
  const dense_array<T> keys = with_half_square<T>(call.key());
  call.set_rows({queries, 2}, {keys, 2});
  return attend<T>(call, statistics);
}

}  // namespace detail

/// softmax_j(scale (q_i + b - k_j / 2) . k_j) value: attention by distance, for given queries and
/// keys; the weights are those of the scores -scale |q_i + b - k_j|^2 / 2. bias b is (head_dim,) or
/// (heads, head_dim), and 0 if not given. Options are of attention(); a law that measures the row
/// is refused, a normalizer that compares scores with a constant compares the score above. The
/// score's rounding error grows with scale |k|^2: subtract what all keys have in common.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V>
auto kattention_heads(const Q& query, const K& key, const V& value,
                      const attention_options& options = {},
                      const number_or_array<double>& bias = {}) {
  detail::require_float_arrays<Q, K, V>();
  using T = detail::compute_t<Q, K, V>;
  return std::move(*detail::kattend<T>({query, 2}, {key, 2}, {value, 2}, options, bias, {}).output);
}

/// The output of kattention_heads() and statistics of every row of its weights, in one pass. lse,
/// max_score and mean_score are of the score above; those of -scale |q + b - k|^2 / 2 are less by
/// scale |q + b|^2 / 2.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V>
auto kattention_statistics(const Q& query, const K& key, const V& value,
                           const attention_options& options = {},
                           const number_or_array<double>& bias = {},
                           const statistic_set& statistics = {statistic::lse, statistic::entropy}) {
  detail::require_float_arrays<Q, K, V>();
  using T = detail::compute_t<Q, K, V>;
  return detail::kattend<T>({query, 2}, {key, 2}, {value, 2}, options, bias, statistics);
}

/// The same without a value: no output.
template <detail::array_argument Q, detail::array_argument K>
auto kattention_statistics(const Q& query, const K& key, const attention_options& options = {},
                           const number_or_array<double>& bias = {},
                           const statistic_set& statistics = {statistic::lse, statistic::entropy}) {
  detail::require_float_arrays<Q, K>();
  return detail::kattend<detail::compute_t<Q, K>>({query, 2}, {key, 2}, {}, options, bias,
                                                  statistics);
}

/// y_i = sum_j softmax_j(scale E_ij) x_j with E_ij = (Q x_i + b - K x_j / 2) . K x_j, for x
/// (..., n, embed_dim) and weights Q and K of one shape, (head_dim, embed_dim) or (heads, head_dim,
/// embed_dim): (..., n, embed_dim), with an axis of heads before n if the weights have one, of x's
/// type. options.scale is the article's beta, 1 if not given.
template <detail::array_argument X, detail::array_argument Q, detail::array_argument K>
auto kattention(const X& x, const Q& q_weight, const K& k_weight,
                const attention_options& options = {}, const number_or_array<double>& bias = {}) {
  detail::require_float_arrays<X, Q, K>();
  using T = detail::compute_t<X, Q, K>;
  const detail::strided_array rows(x, 2), q(q_weight, 2), k(k_weight, 2);
  detail::check_vectors("x", rows);
  detail::check_weights(rows, q, k);
  detail::check_threads(options.num_threads);
  const execution how = detail::execution_of(options);
  const detail::strided_array value = rows.with_axis_of_heads();
  detail::extents leading = detail::leading_of(value);
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
