// SPDX-License-Identifier: BSD-3-Clause
//
// Linear attention: what a query reads of the keys are sums of a size that does not depend on
// their number, z = sum_j phi(k_j) and S = sum_j phi(k_j) v_j^T (Katharopoulos et al. 2020,
// arXiv 2006.16236). Where features are exponentials, given by their logarithms, each has its own
// reference M, and the sums are of exp(log phi - M): no size of a logarithm overflows them.
//
// Plain types that the kernels share with the calls: no standard containers, as in types.hpp.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/detail/compiler.hpp"

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

}  // namespace attnscale::detail
