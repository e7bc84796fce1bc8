// SPDX-License-Identifier: BSD-3-Clause
//
// Energies of relay nodes that interact through a matrix, and their gradients.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "attnscale/matrix_product.hpp"
#include "attnscale/results.hpp"
#include "attnscale/strided_array.hpp"

namespace attnscale {

/// sum_kl W_kl B_k . B_l, or -sum_l |sum_k W_kl B_k - B_l|^2.
enum class relay_energy_kind : std::uint8_t { bilinear, residual };

namespace detail {

inline void check_nodes(const strided_array& nodes) {
  if (nodes.dimension() < 2)
    refuse("nodes must have at least 2 axes (..., K, dim), got shape " + text_of(nodes.shape()));
}

inline void check_columns(const char* name, const strided_array& matrix,
                          const strided_array& nodes) {
  if (matrix.extent(1) != nodes.extent(2))
    refuse(std::string(name) + " must have one column for each of the " + text_of(nodes.extent(2)) +
           " nodes, got " + text_of(matrix.shape()));
}

inline void check_interaction(const strided_array& weight, const strided_array& nodes) {
  if (weight.dimension() != 2 || weight.extent(1) != weight.extent(2))
    refuse("weight must be a matrix (K, K), got shape " + text_of(weight.shape()));
  check_columns("weight", weight, nodes);
}

/// W^T B - B.
inline dense_array<double> residual_of(const strided_array& weight, const dense_array<double>& b) {
  const strided_array nodes(b, 2);
  auto rest = matrix_product<double>(weight.transposed(), nodes, leading_of(nodes));
  std::transform(rest.begin(), rest.end(), b.begin(), rest.begin(), std::minus<>());
  return rest;
}

/// The sum over the last two axes of a b, both row-major.
inline dense_array<double> sum_of_products(const dense_array<double>& a,
                                           const dense_array<double>& b, const extents& leading) {
  dense_array<double> sums = new_array<double>(leading, {});
  const std::size_t size = sums.size() ? a.size() / sums.size() : 0;
  std::size_t at = 0;
  for (double& each : sums) {
    each = 0;
    for (std::size_t i = 0; i < size; ++i, ++at) each += a.data()[at] * b.data()[at];
  }
  return sums;
}

/// relay_message() with the nodes of x.
inline dense_array<double> relay_message(const strided_array& x, const strided_array& centres,
                                         const strided_array& gradient,
                                         const attention_state_result<double>& nodes,
                                         const execution& how) {
  const strided_array output(nodes.output, 2);
  if (gradient.shape() != output.shape())
    refuse("gradient must have the shape of the nodes, " + text_of(output.shape()) + ", got " +
           text_of(gradient.shape()));
  const extents leading = leading_of(output);
  auto weights = matrix_product<double>(x, centres.transposed(), leading, how);
  auto along = matrix_product<double>(x, gradient.transposed(), leading, how);
  const auto n_nodes = static_cast<std::size_t>(output.extent(2));
  const auto n = static_cast<std::size_t>(x.extent(2));
  const extents node_axes = joined(leading, {output.extent(2)});
  const auto* g = static_cast<const double*>(gradient.at(extents{}, extents{}));
  const auto dim = static_cast<std::size_t>(output.extent(1));
  std::vector<double> at_nodes(nodes.lse.size(), 0.0);  // G_k . B_k
  for (std::size_t k = 0; k < at_nodes.size(); ++k)
    for (std::size_t c = k * dim; c < (k + 1) * dim; ++c)
      at_nodes[k] += g[c] * nodes.output.data()[c];
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::size_t node = i / (n * n_nodes) * n_nodes + i % n_nodes;
    const double weight = std::exp(weights.data()[i] - nodes.lse.data()[node]);
    along.data()[i] = weight * (along.data()[i] - at_nodes[node]);
    weights.data()[i] = weight;
  }
  auto message = matrix_product<double>({weights, 2}, gradient, leading, how);
  const auto turned = matrix_product<double>({along, 2}, centres, leading, how);
  std::transform(message.begin(), message.end(), turned.begin(), message.begin(), std::plus<>());
  return message;
}

}  // namespace detail

/// The energy of nodes (..., K, dim) that interact through a matrix W (K, K): shape (...).
template <detail::array_argument B, detail::array_argument W>
dense_array<double> relay_energy(const B& nodes, const W& weight,
                                 relay_energy_kind kind = relay_energy_kind::bilinear) {
  detail::require_float_arrays<B, W>();
  const detail::strided_array w(weight, 2);
  detail::check_nodes({nodes, 2});
  detail::check_interaction(w, {nodes, 2});
  const dense_array<double> b = xt::cast<double>(nodes);
  const detail::extents leading = detail::leading_of({b, 2});
  if (kind == relay_energy_kind::bilinear)
    return detail::sum_of_products(b, detail::matrix_product<double>(w, {b, 2}, leading), leading);
  const dense_array<double> rest = detail::residual_of(w, b);
  dense_array<double> energy = detail::sum_of_products(rest, rest, leading);
  for (double& each : energy) each = -each;
  return energy;
}

/// dE/dB of relay_energy(): (..., K, dim).
template <detail::array_argument B, detail::array_argument W>
dense_array<double> relay_energy_gradient(const B& nodes, const W& weight,
                                          relay_energy_kind kind = relay_energy_kind::bilinear) {
  detail::require_float_arrays<B, W>();
  const detail::strided_array w(weight, 2);
  detail::check_nodes({nodes, 2});
  detail::check_interaction(w, {nodes, 2});
  const dense_array<double> b = xt::cast<double>(nodes);
  const detail::extents leading = detail::leading_of({b, 2});
  const bool bilinear = kind == relay_energy_kind::bilinear;
  const dense_array<double> rest = bilinear ? b : detail::residual_of(w, b);
  auto found = detail::matrix_product<double>(w, {rest, 2}, leading);
  const dense_array<double> other =
      bilinear ? detail::matrix_product<double>(w.transposed(), {b, 2}, leading) : rest;
  for (std::size_t i = 0; i < found.size(); ++i) {
    double& each = found.data()[i];
    each = bilinear ? each + other.data()[i] : -2 * (each - other.data()[i]);
  }
  return found;
}

/// L^T (R B) for L and R of shape (D, K), in O(K dim D): what the model KED puts in the place of a
/// gradient. It is one, of B^T L^T R B / 2, where L^T R is symmetric.
template <detail::array_argument B, detail::array_argument L, detail::array_argument R>
dense_array<double> relay_energy_gradient(const B& nodes, const L& left, const R& right) {
  detail::require_float_arrays<B, L, R>();
  const detail::strided_array b(nodes, 2), l(left, 2), r(right, 2);
  detail::check_nodes(b);
  if (l.dimension() != 2 || l.shape() != r.shape())
    detail::refuse("L and R must have the same shape (D, K), got " + detail::text_of(l.shape()) +
                   " and " + detail::text_of(r.shape()));
  detail::check_columns("L", l, b);
  const detail::extents leading = detail::leading_of(b);
  const auto read = detail::matrix_product<double>(r, b, leading);
  return detail::matrix_product<double>(l.transposed(), {read, 2}, leading);
}

}  // namespace attnscale
