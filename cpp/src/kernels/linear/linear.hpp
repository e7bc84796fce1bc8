// SPDX-License-Identifier: BSD-3-Clause
//
// Arguments of the linear attention kernels; attnscale/detail/linear_form.hpp has the formulas.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/types.hpp"
#include "kernels/tile/block.hpp"

namespace attnscale::detail {

/// Maximum difference in nats between a logarithm and its feature's reference.
inline constexpr double linear_rise = 8;

/// Ranges that decide whether a product of these rows may underflow or overflow in the compute
/// type.
struct linear_range {
  double query, key, value, grad;  ///< smallest non-zero features and elements
  bool overflow;                   ///< a sum is not finite
};

/// Rows of one head. Without keys, queries read `base`; without queries, keys are added to `own`.
/// With both, query i reads `base`, the previous `own`, and keys 0 ... i of the block, and the keys
/// are added to `own`, with the same bits with or without queries and a base.
struct linear_block {
  const linear_form* form;
  matrix query, key, value;  ///< data may be null: no queries, or no keys
  void* out;
  matrix_layout out_layout;
  const double *query_turn, *key_turn;  ///< cos and sin of every row's angle, for `turned`
  const double* decay;                  ///< log-decay of every row, at most 0; null: no decay
  linear_sums base, own;
  int64_t rows, count;  ///< count: number of keys before this block, or of all without keys
  linear_range* range;  ///< null: unused
  const stop_signal* stop;
  void* scratch;
};

}  // namespace attnscale::detail
