// SPDX-License-Identifier: BSD-3-Clause
//
// Linear attention: what a query reads of the keys are sums of a size that does not depend on
// their number, z = sum_j phi(k_j) and S = sum_j phi(k_j) v_j^T (Katharopoulos et al. 2020,
// arXiv 2006.16236). Where features are exponentials, given by their logarithms, each has its own
// reference M, and the sums are of exp(log phi - M): no size of a logarithm overflows them.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/tile/block.hpp"

namespace attnscale::detail {

/// From the elements x of a row to features. Those from `exponential` on are given by logarithms.
enum class feature_map : int {
  given,        ///< x
  elu,          ///< elu(x) + 1
  relu,         ///< max(x, 0)
  turned,       ///< max(x, 0) cos(a), then max(x, 0) sin(a): twice as many, a is the row's angle
  exponential,  ///< log phi = x
  log_elu,      ///< log phi = ln(elu(x) + 1)
  projected     ///< log phi = x W - norm_factor |x|^2 - shift
};

/// What phi(q)^T S is divided by.
enum class linear_norm : int {
  weights,   ///< phi(q) . z, where that is not 0
  count,     ///< the number of keys
  channels,  ///< exponentials: z of every feature, and the sum of phi(q)
  none       ///< 1
};

/// Sums over some keys, in double.
struct linear_sums {
  double* reference;  ///< M, features: of keys seen, within linear_rise of the largest; -inf: none
  double* total;      ///< z, features
  double* products;   ///< S, features x value_dim, contiguous; null: there are no sums
};

/// How far in nats a logarithm may exceed its feature's reference.
inline constexpr double linear_rise = 8;

/// What all rows of a call share.
struct linear_form {
  feature_map map;
  linear_norm norm;
  double scale;  ///< multiplies x
  int64_t head_dim, features, value_dim;
  const void* projection;       ///< W of the compute type, head_dim rows of contiguous features
  ptrdiff_t projection_stride;  ///< of its rows, in elements; whole vectors at every level
  double norm_factor, shift;    ///< of `projected`
  const void* back;             ///< of gradients: W^T, as the projection
  ptrdiff_t back_stride;
};

/// What decides whether a product of these rows may vanish or overflow in the compute type.
struct linear_range {
  double query, key, value, grad;  ///< the smallest features and elements that are not 0
  bool overflow;                   ///< a sum is not finite
};

/// Rows of one head. Without keys, queries read `base`; without queries, keys are added to `own`;
/// with both, query i reads `base`, `own` as it was, and the keys 0 ... i of the block, and the
/// keys are added to `own`, which is the same bits whether or not there are queries and a base.
struct linear_block {
  const linear_form* form;
  matrix query, key, value;  ///< data may be null: there are no queries, or no keys
  void* out;
  matrix_layout out_layout;
  const double *query_turn, *key_turn;  ///< cos and sin of every row's angle, of `turned`
  const double* decay;                  ///< log-decay of every row, at most 0; null: none
  linear_sums base, own;
  int64_t rows, count;  ///< count: of the keys before this block, or all without keys
  linear_range* range;  ///< null: of no interest
  const stop_signal* stop;
  void* scratch;
};

}  // namespace attnscale::detail
