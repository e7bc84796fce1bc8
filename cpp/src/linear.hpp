// SPDX-License-Identifier: BSD-3-Clause
//
// Linear attention of one head: running sums S = sum_j phi(k_j) v_j^T and z = sum_j phi(k_j), and
// what queries read from them.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace attnscale::detail {

/// phi: the rows are the features already; elu(x) + 1; max(x, 0); e^x.
enum class feature_map : int { given, elu, relu, exponential };

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
  void* out;  ///< rows x value_dim, with queries: phi(q_i)^T S
  ptrdiff_t out_stride;
  void* sums;        ///< rows, with queries: phi(q_i) . z
  double* products;  ///< S, features x value_dim, contiguous
  double* total;     ///< z, features
  /// Sums over the keys before, which queries read as well, or null. Apart from `products`, so that
  /// these are the same whether or not there are queries.
  const double *base_products, *base_total;
  /// For exponentials, features each: what is added to a query before the largest of its row is
  /// subtracted, and what is subtracted from a key.
  const void *query_shift, *key_reference;
  int64_t rows, features, value_dim;
  feature_map map;
  /// Exponentials, with keys: those of a query over its channels' running sums z. `sums` is then
  /// the sum of the exponentials alone.
  bool per_channel;
  bool divide;  ///< out over sums, where these are not 0
  void* scratch;
};

/// Runs the kernel of the level in use on this thread; `wide` for double.
void run(linear_block block, bool wide);

}  // namespace attnscale::detail
