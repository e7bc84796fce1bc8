// SPDX-License-Identifier: BSD-3-Clause
//
// Linear attention: a query reads sums over the keys, of a size that does not depend on their
// number, z = sum_j phi(k_j) and S = sum_j phi(k_j) v_j^T (Katharopoulos et al. 2020, arXiv
// 2006.16236). Features given by their logarithms each have their own reference M, and the sums are
// of exp(log phi - M), which cannot overflow.
//
// Plain types that kernels and calls share: no standard containers, as in types.hpp.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/detail/compiler.hpp"

namespace attnscale::detail {

/// Feature maps of a row x. From `exponential` on they give logarithms.
enum class feature_map : int {
  given,        ///< x
  elu,          ///< elu(x) + 1
  relu,         ///< max(x, 0)
  turned,       ///< max(x, 0) cos(a), then max(x, 0) sin(a), with the row's angle a: twice as many
  exponential,  ///< log phi = x
  log_elu,      ///< log phi = ln(elu(x) + 1)
  projected     ///< log phi = x W - norm_factor |x|^2 - shift
};

/// Divisor of phi(q)^T S.
enum class linear_norm : int {
  weights,   ///< phi(q) . z if that is not 0
  count,     ///< the number of keys
  channels,  ///< exponentials: z of every feature, and the sum of phi(q)
  none       ///< 1
};

/// Sums over some keys, in double.
struct linear_sums {
  double* reference;  ///< M, features: within linear_rise of the largest seen; -inf: no keys
  double* total;      ///< z, features
  double* products;   ///< S, features x value_dim, contiguous; null: no sums
};

/// Parameters that all rows of a call share.
struct linear_form {
  feature_map map;
  linear_norm norm;
  double scale;  ///< multiplies x
  int64_t head_dim, features, value_dim;
  const void* projection;       ///< W of the compute type, head_dim rows of contiguous features
  ptrdiff_t projection_stride;  ///< stride of its rows, in elements; whole vectors at every level
  double norm_factor, shift;    ///< for `projected`
  const void* back;             ///< for gradients: W^T, as the projection
  ptrdiff_t back_stride;
};

}  // namespace attnscale::detail
