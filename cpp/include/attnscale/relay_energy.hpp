// SPDX-License-Identifier: BSD-3-Clause
//
// Energies of relay nodes that interact through a matrix, and their gradients.
#pragma once

#include <cstdint>

#include "attnscale/dense_array.hpp"
#include "attnscale/problem.hpp"

namespace attnscale {

/// sum_kl W_kl B_k . B_l, or -sum_l |sum_k W_kl B_k - B_l|^2.
enum class relay_energy_kind : std::uint8_t { bilinear, residual };

/// Energy and gradient; refuse nodes and matrices that do not fit.
ATTNSCALE_EXPORT row_array<double> relay_energy_of(const strided_array& nodes,
                                                   const strided_array& weight,
                                                   relay_energy_kind kind);
ATTNSCALE_EXPORT row_array<double> relay_energy_gradient_of(const strided_array& nodes,
                                                            const strided_array& weight,
                                                            relay_energy_kind kind);
ATTNSCALE_EXPORT row_array<double> relay_energy_gradient_of(const strided_array& nodes,
                                                            const strided_array& left,
                                                            const strided_array& right);

/// relay_message() for arrays of double, with the nodes of x and the log-sum-exp of their weights.
ATTNSCALE_EXPORT row_array<double> relay_message_of(const strided_array& x,
                                                    const strided_array& centres,
                                                    const strided_array& gradient,
                                                    const strided_array& nodes, const double* lse,
                                                    const execution& how);

/// The energy of nodes (..., K, dim) that interact through a matrix W (K, K): shape (...).
template <detail::array_argument B, detail::array_argument W>
dense_array<double> relay_energy(const B& nodes, const W& weight,
                                 relay_energy_kind kind = relay_energy_kind::bilinear) {
  detail::require_float_arrays<B, W>();
  return detail::dense<double>(relay_energy_of({nodes, 2}, {weight, 2}, kind));
}

/// dE/dB of relay_energy(): (..., K, dim).
template <detail::array_argument B, detail::array_argument W>
dense_array<double> relay_energy_gradient(const B& nodes, const W& weight,
                                          relay_energy_kind kind = relay_energy_kind::bilinear) {
  detail::require_float_arrays<B, W>();
  return detail::dense<double>(relay_energy_gradient_of({nodes, 2}, {weight, 2}, kind));
}

/// L^T (R B) for L and R of shape (D, K), in O(K dim D): the model KED's replacement of a gradient.
/// It is the gradient of B^T L^T R B / 2 if L^T R is symmetric.
template <detail::array_argument B, detail::array_argument L, detail::array_argument R>
dense_array<double> relay_energy_gradient(const B& nodes, const L& left, const R& right) {
  detail::require_float_arrays<B, L, R>();
  return detail::dense<double>(relay_energy_gradient_of({nodes, 2}, {left, 2}, {right, 2}));
}

}  // namespace attnscale
