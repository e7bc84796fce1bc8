// SPDX-License-Identifier: BSD-3-Clause
//
// Linear attention of one head, for features that are given: running sums S = sum_j k_j v_j^T and
// z = sum_j k_j, and what queries read from them.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace attnscale::detail {

/// Rows of arrays of one compute type (float or double); elements of a row are contiguous.
/// Without keys, all queries read the sums; without queries, keys are added to them; with both,
/// query i reads what was there and the keys 0 ... i.
struct linear_block {
  const void* query;  ///< rows x features, or null
  ptrdiff_t query_stride;
  const void* key;  ///< rows x features, or null
  ptrdiff_t key_stride;
  const void* value;  ///< rows x value_dim, with keys
  ptrdiff_t value_stride;
  void* out;         ///< rows x value_dim, contiguous, with queries: q_i^T S
  void* sums;        ///< rows, with queries: q_i . z
  double* products;  ///< S, features x value_dim, contiguous
  double* total;     ///< z, features
  int64_t rows, features, value_dim;
  void* scratch;
};

/// Runs the kernel of the level in use on this thread; `wide` for double.
void run(linear_block block, bool wide);

}  // namespace attnscale::detail
