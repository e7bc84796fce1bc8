// SPDX-License-Identifier: BSD-3-Clause
//
// Rows and sums of one kernel call of linear attention; attnscale/detail/linear_form.hpp explains
// the sums.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/types.hpp"
#include "kernels/tile/block.hpp"

namespace attnscale::detail {

/// How far in nats a logarithm may exceed its feature's reference.
inline constexpr double linear_rise = 8;

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
