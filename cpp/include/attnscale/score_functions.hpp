// SPDX-License-Identifier: BSD-3-Clause
//
// f1 ... f6: six steps from the dot product to a score that has a best key. x is the query side, y
// the key side; both are rows of embed_dim channels, Q and K matrices (head_dim, embed_dim), b and
// c vectors (head_dim,). Names and meanings follow the Python package, attnscale.variants.
//
//   auto scores = attnscale::score_functions::f4(x, y, q_weight, k_weight, bias);
//
// Each returns the scores of all pairs, (..., n, m) for x (..., n, embed_dim) and y (..., m,
// embed_dim), double if any array is, else float. f4 and f5 are the score of kattention().
// Arguments that do not fit throw std::invalid_argument.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "attnscale/attention.hpp"
#include "attnscale/detail/matrix_product.hpp"
#include "attnscale/detail/strided_array.hpp"
#include "attnscale/detail/weight_matrix.hpp"

namespace attnscale {

namespace detail {

/// Qx and Ky, checked.
template <class T>
struct projected_pair {
  dense_array<T> qx, ky;
  extents leading;  ///< of the scores of all pairs

  projected_pair(const strided_array& x, const strided_array& y, const strided_array& q_weight,
                 const strided_array& k_weight) {
    check_vectors("x", x);
    check_vectors("y", y);
    check_weight("q_weight", q_weight, x);
    check_weight("k_weight", k_weight, x);
    if (y.extent(1) != x.extent(1))
      refuse("x and y must have the same embed_dim, got " + text_of(x.extent(1)) + " and " +
             text_of(y.extent(1)));
    if (q_weight.extent(2) != k_weight.extent(2))
      refuse("q_weight and k_weight must have the same head_dim, got " +
             text_of(q_weight.extent(2)) + " and " + text_of(k_weight.extent(2)));
    leading = broadcast_leading({"x", &x}, {"y", &y});
    qx = matrix_product<T>(x, q_weight.transposed(), x.leading());
    ky = matrix_product<T>(y, k_weight.transposed(), y.leading());
  }
};

template <class T, class X, class Y, class Q, class K>
projected_pair<T> project_pair(const X& x, const Y& y, const Q& q_weight, const K& k_weight) {
  require_float_arrays<X, Y, Q, K>();
  return {{x, 2}, {y, 2}, {q_weight, 2}, {k_weight, 2}};
}

/// Sum over the channels of f(channel, its number), for every row.
template <class T, class F>
dense_array<T> sums_of_rows(const dense_array<T>& rows, F f) {
  const extents shape(rows.shape().begin(), rows.shape().end() - 1);
  dense_array<T> sums = new_array<T>(shape, {});
  const std::size_t dim = rows.shape().back();
  const T* at = rows.data();
  for (T& each : sums) {
    double sum = 0;
    for (std::size_t c = 0; c < dim; ++c) sum += f(static_cast<double>(*at++), c);
    each = static_cast<T>(sum);
  }
  return sums;
}

/// -|row|^2 / 2.
template <class T>
dense_array<T> minus_half_square(const dense_array<T>& rows) {
  return sums_of_rows(rows, [](double x, std::size_t) { return -0.5 * x * x; });
}

/// A vector (head_dim,) as type T.
template <class T, class B>
dense_array<T> read_step(const char* name, const B& step, const dense_array<T>& rows) {
  require_float_arrays<B>();
  const extents shape(step.shape().begin(), step.shape().end());
  const extents wanted(rows.shape().end() - 1, rows.shape().end());
  if (shape != wanted)
    refuse(std::string(name) + " must have shape (head_dim,) = " + text_of(wanted) + ", got " +
           text_of(shape));
  return xt::cast<T>(step);
}

/// Adds a vector to every row.
template <class T>
void add_step(dense_array<T>& rows, const dense_array<T>& step) {
  for (std::size_t i = 0; i < rows.size(); ++i) rows.data()[i] += step.data()[i % step.size()];
}

/// Products of all pairs, plus a term of each key.
template <class T>
dense_array<T> pair_scores(const projected_pair<T>& in, const dense_array<T>& of_key) {
  const strided_array terms(of_key, 1);
  auto scores = matrix_product<T>({in.qx, 2}, strided_array(in.ky, 2).transposed(), in.leading);
  const strided_array pairs(scores, 2);
  T* out = scores.data();
  for_each_index(in.leading, [&](const extents& index) {
    const auto* const term = static_cast<const T*>(terms.at(index, in.leading));
    for (std::int64_t i = 0; i < pairs.extent(2); ++i)
      for (std::int64_t j = 0; j < pairs.extent(1); ++j) *out++ += term[j];
  });
  return scores;
}

/// Adds a term of each row of x.
template <class T>
void add_row_terms(dense_array<T>& scores, const extents& leading, const dense_array<T>& of_row) {
  const strided_array terms(of_row, 1), pairs(scores, 2);
  T* out = scores.data();
  for_each_index(leading, [&](const extents& index) {
    const auto* const term = static_cast<const T*>(terms.at(index, leading));
    for (std::int64_t i = 0; i < pairs.extent(2); ++i)
      for (std::int64_t j = 0; j < pairs.extent(1); ++j) *out++ += term[i];
  });
}

}  // namespace detail

namespace score_functions {

/// Qx . Ky / divisor: the dot product of attention; divisor is sqrt(head_dim) in a Transformer.
template <detail::array_argument X, detail::array_argument Y, detail::array_argument Q,
          detail::array_argument K>
auto f1(const X& x, const Y& y, const Q& q_weight, const K& k_weight, double divisor = 1) {
  using T = detail::compute_t<X, Y, Q, K>;
  if (!std::isfinite(divisor))
    detail::refuse("divisor must be finite, got " + detail::text_of(divisor));
  if (divisor == 0) detail::refuse("divisor must not be 0");
  const auto in = detail::project_pair<T>(x, y, q_weight, k_weight);
  auto scores =
      detail::matrix_product<T>({in.qx, 2}, strided_array(in.ky, 2).transposed(), in.leading);
  for (T& each : scores) each /= static_cast<T>(divisor);
  return scores;
}

/// Qx . Ky - |y|^2 / 2: a Gaussian around K^T Q x, sensitive to every change of y.
template <detail::array_argument X, detail::array_argument Y, detail::array_argument Q,
          detail::array_argument K>
auto f2(const X& x, const Y& y, const Q& q_weight, const K& k_weight) {
  using T = detail::compute_t<X, Y, Q, K>;
  const auto in = detail::project_pair<T>(x, y, q_weight, k_weight);
  const dense_array<T> rows = xt::cast<T>(y);
  return detail::pair_scores(in, detail::minus_half_square(rows));
}

/// Qx . Ky - |Ky|^2 / 2: a Gaussian in Ky, so that y is free along the kernel of K.
template <detail::array_argument X, detail::array_argument Y, detail::array_argument Q,
          detail::array_argument K>
auto f3(const X& x, const Y& y, const Q& q_weight, const K& k_weight) {
  const auto in = detail::project_pair<detail::compute_t<X, Y, Q, K>>(x, y, q_weight, k_weight);
  return detail::pair_scores(in, detail::minus_half_square(in.ky));
}

/// (Qx + b - Ky / 2) . Ky: the best key is a step b away from Qx.
template <detail::array_argument X, detail::array_argument Y, detail::array_argument Q,
          detail::array_argument K, detail::array_argument B>
auto f4(const X& x, const Y& y, const Q& q_weight, const K& k_weight, const B& bias) {
  auto in = detail::project_pair<detail::compute_t<X, Y, Q, K>>(x, y, q_weight, k_weight);
  detail::add_step(in.qx, detail::read_step("bias", bias, in.qx));
  return detail::pair_scores(in, detail::minus_half_square(in.ky));
}

/// f4 with Q = K: one projection for x and y; TransR's relation Kx + b = Ky.
template <detail::array_argument X, detail::array_argument Y, detail::array_argument K,
          detail::array_argument B>
auto f5(const X& x, const Y& y, const K& k_weight, const B& bias) {
  return f4(x, y, k_weight, k_weight, bias);
}

/// -|Qx - Ky|^2 / 2 + b . Ky + c . Qx: swapping x, Q, c with y, K, b changes nothing.
template <detail::array_argument X, detail::array_argument Y, detail::array_argument Q,
          detail::array_argument K, detail::array_argument B, detail::array_argument C>
auto f6(const X& x, const Y& y, const Q& q_weight, const K& k_weight, const B& bias,
        const C& query_bias) {
  auto in = detail::project_pair<detail::compute_t<X, Y, Q, K>>(x, y, q_weight, k_weight);
  const auto step = detail::read_step("query_bias", query_bias, in.qx);
  const auto of_query = detail::sums_of_rows(in.qx, [&](double z, std::size_t c) {
    return z * static_cast<double>(step.data()[c]) - 0.5 * z * z;
  });
  detail::add_step(in.qx, detail::read_step("bias", bias, in.qx));
  auto scores = detail::pair_scores(in, detail::minus_half_square(in.ky));
  detail::add_row_terms(scores, in.leading, of_query);
  return scores;
}

}  // namespace score_functions
}  // namespace attnscale
