// SPDX-License-Identifier: BSD-3-Clause
//
// Differential attention: the difference of two maps, and its backward pass. Names and meanings
// follow the Python package, attnscale.variants.
//
//   auto output = attnscale::differential_attention(q1, k1, q2, k2, v, 0.8, {.is_causal = true});
//
// Arrays as for attention(), of float or double, with any strides, read in place. Arguments that do
// not fit throw std::invalid_argument.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "attnscale/attention.hpp"
#include "attnscale/attention_gradients.hpp"
#include "attnscale/detail/call_description.hpp"
#include "attnscale/detail/strided_array.hpp"
#include "attnscale/number_or_array.hpp"
#include "attnscale/options.hpp"

namespace attnscale {

/// Gradients, with the shapes and types of their arrays.
template <class Q1, class K1, class Q2, class K2, class V>
struct differential_gradients_result {
  dense_array<Q1> query1;
  dense_array<K1> key1;
  dense_array<Q2> query2;
  dense_array<K2> key2;
  dense_array<V> value;
  dense_array<double> lam;
};

namespace detail {

/// lam of every row, (..., heads, n_queries), where both maps have shape `rows`.
inline row_array<double> read_lam(const number_or_array<double>& lam, const extents& rows,
                                  const extents& others) {
  if (rows != others)
    refuse("both maps must have the same heads and queries, got " + text_of(rows) + " and " +
           text_of(others));
  if (!lam) refuse("lam must be a number or an array of numbers, got none");
  for (const double each : lam.rows().numbers)
    if (!std::isfinite(each)) refuse("lam must be finite, got NaN or infinity");
  check_broadcast("lam", strided_array(lam.rows(), 1), rows, "(..., heads, n_queries)");
  return broadcast_rows(lam.rows(), rows);
}

/// An array as type T, without a copy if it has that type.
template <class T, class A>
decltype(auto) as_type(const A& array) {
  if constexpr (std::is_same_v<typename A::value_type, T>)
    return (array);
  else
    return dense_array<T>(xt::cast<T>(array));
}

/// first - lam second, row by row.
template <class T>
void subtract(dense_array<T>& first, const row_array<double>& lam, const dense_array<T>& second) {
  const std::size_t rows = lam.numbers.size(), dim = rows ? first.size() / rows : 0;
  T* out = first.data();
  const T* other = second.data();
  for (std::size_t row = 0; row < rows; ++row) {
    const T share = static_cast<T>(lam.numbers[row]);
    for (std::size_t c = 0; c < dim; ++c) *out++ -= share * *other++;
  }
}

/// Gradients by lam; the gradient by the output becomes that by the second map.
template <class T>
row_array<double> share_gradients(const row_array<double>& lam, const dense_array<T>& second,
                                  dense_array<T>& grad) {
  const std::size_t rows = lam.numbers.size(), dim = rows ? grad.size() / rows : 0;
  row_array<double> by_lam = lam;
  for (std::size_t row = 0; row < rows; ++row) {
    const T factor = -static_cast<T>(lam.numbers[row]);
    double sum = 0;
    for (std::size_t c = row * dim; c < (row + 1) * dim; ++c) {
      sum += static_cast<double>(grad.data()[c]) * static_cast<double>(second.data()[c]);
      grad.data()[c] *= factor;
    }
    by_lam.numbers[row] = -sum;
  }
  return by_lam;
}

}  // namespace detail

/// (P1 - lam P2) value, with P1 and P2 the weights of attention to key1 and key2, whose head
/// dimensions may differ; lam broadcasts to (..., heads, n_queries). Options apply to both maps. Ye
/// et al. 2024, arXiv 2410.05258, without its normalisation of heads.
template <detail::array_argument Q1, detail::array_argument K1, detail::array_argument Q2,
          detail::array_argument K2, detail::array_argument V>
auto differential_attention(const Q1& query1, const K1& key1, const Q2& query2, const K2& key2,
                            const V& value, const number_or_array<double>& lam,
                            const attention_options& options = {}) {
  detail::require_float_arrays<Q1, K1, Q2, K2, V>();
  using T = detail::compute_t<Q1, K1, Q2, K2, V>;
  const auto& wide = detail::as_type<T>(value);  // both maps in the type of the result
  const call_description first({query1, 2}, {key1, 2}, {wide, 2}, options);
  const call_description second({query2, 2}, {key2, 2}, {wide, 2}, options);
  const row_array<double> share = detail::read_lam(lam, first.rows(), second.rows());
  dense_array<T> output = std::move(*detail::attend<T>(first, {}).output);
  detail::subtract(output, share, *detail::attend<T>(second, {}).output);
  return output;
}

/// Gradients of sum(grad_output * differential_attention(...)), summed where heads share an array.
/// grad_output broadcasts to the output's shape.
template <detail::array_argument Q1, detail::array_argument K1, detail::array_argument Q2,
          detail::array_argument K2, detail::array_argument V, detail::array_argument G>
auto differential_attention_gradients(const Q1& query1, const K1& key1, const Q2& query2,
                                      const K2& key2, const V& value,
                                      const number_or_array<double>& lam, const G& grad_output,
                                      const attention_options& options = {}) {
  detail::require_float_arrays<Q1, K1, Q2, K2, V, G>();
  using T = detail::compute_t<Q1, K1, Q2, K2, V>;
  const auto& wide = detail::as_type<T>(value);  // both maps in the type of the result
  const call_description first({query1, 2}, {key1, 2}, {wide, 2}, options);
  const call_description second({query2, 2}, {key2, 2}, {wide, 2}, options);
  const extents rows = first.rows();
  const row_array<double> share = detail::read_lam(lam, rows, second.rows());
  const dense_array<T> grad =
      detail::whole_grad<T>(grad_output, rows, first.value_dim(), "the output");
  auto one = attention_gradients(query1, key1, wide, grad, options);
  // Saves the backward pass computing them again; other normalizers have no log-sum-exp.
  const bool has_lse = traits_of(options.normalizer.rule).is_exponential;
  const auto seen =
      detail::attend<T>(second, has_lse ? statistic_set{statistic::lse} : statistic_set{});
  dense_array<T> scaled = grad;
  const row_array<double> by_lam = detail::share_gradients(share, *seen.output, scaled);
  auto two = attention_gradients(query2, key2, wide, scaled, options, {}, &seen);
  const dense_array<T> by_value = one.value + two.value;
  const auto& shape = lam.rows().extents;
  return differential_gradients_result<typename Q1::value_type, typename K1::value_type,
                                       typename Q2::value_type, typename K2::value_type,
                                       typename V::value_type>{
      xt::cast<typename Q1::value_type>(one.query),
      xt::cast<typename K1::value_type>(one.key),
      xt::cast<typename Q2::value_type>(two.query),
      xt::cast<typename K2::value_type>(two.key),
      xt::cast<typename V::value_type>(by_value),
      detail::dense<double>(sum_heads({by_lam, 1}, first.leading(), {shape.begin(), shape.end()}))};
}

}  // namespace attnscale
