// SPDX-License-Identifier: BSD-3-Clause
//
// What one call of the gradient kernel works on: a block of queries of one head
// against all keys. Gradients of keys and values are shared with other blocks,
// which add to them in turn.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/types.hpp"
#include "kernels/tile/block.hpp"

namespace attnscale::detail {

/// Queries of a block, at every level.
inline constexpr int max_gradient_rows = max_block_rows;

/// Asks for a block's turn at the rows that blocks share: each row is added to
/// in one order.
struct block_turns {
  /// Until all blocks before have passed the keys below key_end; false: leave,
  /// nothing counts.
  bool (*wait)(void* state, int64_t key_end) noexcept;
  /// This block adds nothing more to the keys below key_end.
  void (*pass)(void* state, int64_t key_end) noexcept;
  void* state;
};

/// Rows that the forward pass lists: of row r the `count[r]` keys from begin[r] on, ascending, with
/// their positive weights.
struct row_lists {
  const int64_t *begin, *count;  ///< null: no lists
  const uint32_t* key;
  const double* weight;
  int64_t size;  ///< of key and weight, where not all belongs to a row
};

/// Rows of a softmax: the weight of score t (in base 2) is p = 2^u, u = t -
/// reference - remainder. Other normalizers have a reference, a factor of the
/// weights and a constant; rows with lists a factor that is NaN where they are. The gradient of a
/// score of a softmax is
///   p (grad_output . value - grad_output . output + constant + linear u +
///   square u^2 + weight p),
/// and `at_top` more at the key `top`.
struct gradient_rows {
  double reference[max_gradient_rows], remainder[max_gradient_rows];
  double constant[max_gradient_rows], linear[max_gradient_rows];
  double square[max_gradient_rows], weight[max_gradient_rows];
  double factor[max_gradient_rows];
  double at_top[max_gradient_rows];
  int64_t top[max_gradient_rows];  ///< -1: none
};

/// Which terms a gradient has besides the constant; each row of the list
/// includes those above.
enum class gradient_terms : uint8_t { constant, linear, all };

struct gradient_block : score_block {
  matrix value, output,
      grad_output;  ///< without grad_output: null, and no gradient of the value
  int64_t value_dim;
  const double* scale;
  ptrdiff_t scale_row;
  const gradient_rows* given;
  row_lists lists;
  normalizer rule;
  double alpha;  ///< of entmax; 1 where the weights in lists are exponentials
  gradient_terms terms;
  bool centred;  ///< grad_output . output is part of the constant
  bool at_top;   ///< some row has it
  /// Of the compute type, with neighbouring columns: row 0 of d_query is the
  /// block's first query, row 0 of d_key and d_value is key 0, to which rows
  /// are added.
  void *d_query, *d_key, *d_value;
  ptrdiff_t d_query_row, d_key_row, d_value_row;
  bool shares_query;  ///< d_query is added to, in turn
  /// Of the compute type: of an additive mask, row 0 that of the block's first
  /// query; of tables of the distance, the entry of the block's first query and
  /// key 0, with strides -1 and 1. Null: none.
  void *d_attn_mask, *d_distance_scale, *d_distance_bias;
  ptrdiff_t d_attn_mask_row, d_attn_mask_column;
  double* d_scale;            ///< of each row
  double* product;            ///< grad_output . output of each row
  double* d_bias;             ///< of a sigmoid, of each row, to which is added; null: not wanted
  double* d_alpha;            ///< of entmax, of each row; null: not wanted
  received_weights received;  ///< of key 0, added to in turn: there are no gradients then
  block_turns turns;
};

}  // namespace attnscale::detail
