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
  bool (*wait)(void* state, int64_t key_end) noexcept = nullptr;
  /// This block adds nothing more to the keys below key_end.
  void (*pass)(void* state, int64_t key_end) noexcept = nullptr;
  void* state = nullptr;
};

/// Rows that the forward pass lists: of row r the `count[r]` keys from begin[r] on, ascending, with
/// their positive weights. A row of many keys has an empty list, and its weights in panels, to
/// which those of the other rows of the block are then added.
struct row_lists {
  const int64_t *begin = nullptr, *count = nullptr;  ///< null: no lists
  const uint32_t* key = nullptr;
  const double* weight = nullptr;
  int64_t size = 0;        ///< of key and weight, where not all belongs to a row
  void* panels = nullptr;  ///< [vector of rows][key][lane], of the compute type; null: none
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

/// What a backward pass reads beside the scores.
struct gradient_values {
  matrix value{}, output{}, grad_output{};
  int64_t value_dim = 0;  ///< 0 without grad_output, and then no gradient of the value
};

/// The weights of a block, and how its statistics depend on them.
struct gradient_rule {
  normalizer rule = normalizer::softmax;
  double alpha = 1;  ///< of entmax; 1 where the weights in lists are exponentials
  const gradient_rows* given = nullptr;
  row_lists lists{};
  gradient_terms terms = gradient_terms::constant;
  bool centred = false;  ///< grad_output . output is part of the constant
  bool at_top = false;   ///< some row has it
};

/// An array of the compute type that gradients are added to. Null: not asked for.
struct gradient_place {
  void* data = nullptr;
  ptrdiff_t row = 0, column = 1;
};

/// Row 0 of d_query and d_attn_mask is that of the block's first query, row 0 of d_key and d_value
/// that of key 0. Tables of the distance begin at the entry of the block's first query and key 0;
/// their strides are -1 and 1.
struct gradient_places {
  gradient_place d_query{}, d_key{}, d_value{};
  bool shares_query = false;     ///< d_query is added to, in turn
  gradient_place d_attn_mask{};  ///< of an additive mask
  void *d_distance_scale = nullptr, *d_distance_bias = nullptr;
  received_weights received{};  ///< of key 0, added to in turn: there are no gradients then
};

/// Numbers of each row.
struct gradient_sums {
  double* d_scale = nullptr;
  double* product = nullptr;  ///< grad_output . output
  double* d_bias = nullptr;   ///< of a number that is added to the scores; null: not wanted
  double* d_alpha = nullptr;  ///< of entmax; null: not wanted
};

struct gradient_block : score_block,
                        block_scales,
                        gradient_values,
                        gradient_rule,
                        gradient_places,
                        gradient_sums {
  block_turns turns{};
};

}  // namespace attnscale::detail
