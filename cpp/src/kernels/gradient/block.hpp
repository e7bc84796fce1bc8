// SPDX-License-Identifier: BSD-3-Clause
//
// Arguments of the gradient kernel: a block of queries of one head against all keys. Gradients of
// keys and values are shared with other blocks, which add to them in turn.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/types.hpp"
#include "kernels/tile/block.hpp"

namespace attnscale::detail {

/// Maximum number of queries per block, at every level.
inline constexpr int max_gradient_rows = max_block_rows;

/// Order in which blocks add to the rows that they share.
struct turn_hooks {
  /// Waits until all earlier blocks have passed the keys below key_end; false: stop, results do not
  /// matter.
  bool (*wait)(void* state, int64_t key_end) noexcept = nullptr;
  /// Declares that this block adds nothing more to the keys below key_end.
  void (*pass)(void* state, int64_t key_end) noexcept = nullptr;
  void* state = nullptr;
};

/// Lists of rows from the forward pass: for row r the `count[r]` keys from begin[r] on, ascending,
/// with their positive weights. A row of many keys has an empty list, and its weights in panels, to
/// which those of the other rows of the block are then added.
struct row_lists {
  const int64_t *begin = nullptr, *count = nullptr;  ///< null: no lists
  const uint32_t* key = nullptr;
  const double* weight = nullptr;
  int64_t size = 0;        ///< of key and weight, including gaps between rows
  void* panels = nullptr;  ///< [vector of rows][key][lane], of the compute type; null: none
};

/// Parameters of each row. For a softmax the weight of score t (in base 2) is p = 2^u, u = t -
/// reference - remainder. Other normalizers have a reference, a factor of the weights and a
/// constant; for rows with lists the factor is NaN if the row is. The gradient of a score of a
/// softmax is
///   p (grad_output . value - grad_output . output + constant + linear u +
///   square u^2 + weight p),
/// with `at_top` added at the key `top`.
struct gradient_rows {
  double reference[max_gradient_rows], remainder[max_gradient_rows];
  double constant[max_gradient_rows], linear[max_gradient_rows];
  double square[max_gradient_rows], weight[max_gradient_rows];
  double factor[max_gradient_rows];
  double at_top[max_gradient_rows];
  int64_t top[max_gradient_rows];  ///< -1: no key
};

/// Terms of a gradient besides the constant; each enumerator includes those before it.
enum class gradient_terms : uint8_t { constant, linear, all };

/// Inputs of a backward pass besides the scores.
struct gradient_values {
  matrix value{}, output{}, grad_output{};
  int64_t value_dim = 0;  ///< 0 without grad_output, and then no gradient of the value
};

/// The normalizer of a block, and how its statistics depend on the weights.
struct gradient_rule {
  normalizer rule = normalizer::softmax;
  double alpha = 1;  ///< entmax; 1 where the weights in lists are exponentials
  const gradient_rows* given = nullptr;
  row_lists lists{};
  gradient_terms terms = gradient_terms::constant;
  bool centred = false;  ///< grad_output . output is part of the constant
  bool at_top = false;   ///< some row has at_top
};

/// An array of the compute type to which gradients are added. Null: unused.
struct gradient_place {
  void* data = nullptr;
  ptrdiff_t row = 0, column = 1;
};

/// Memory for gradients. Row 0 of d_query and d_attn_mask is the block's first query, row 0 of
/// d_key and d_value is key 0. Tables of the distance begin at the entry of the block's first query
/// and key 0; their strides are -1 and 1.
struct gradient_places {
  gradient_place d_query{}, d_key{}, d_value{};
  bool shares_query = false;     ///< several blocks add to d_query, in turn
  gradient_place d_attn_mask{};  ///< additive mask
  void *d_distance_scale = nullptr, *d_distance_bias = nullptr;
  received_weights received{};  ///< from key 0, added to in turn; excludes gradients
};

/// Sums per row.
struct gradient_sums {
  double* d_scale = nullptr;
  double* product = nullptr;  ///< grad_output . output
  double* d_bias = nullptr;   ///< by a number added to the scores; null: unused
  double* d_alpha = nullptr;  ///< entmax; null: unused
};

struct gradient_block : score_block,
                        block_scales,
                        gradient_values,
                        gradient_rule,
                        gradient_places,
                        gradient_sums {
  turn_hooks turns{};
};

}  // namespace attnscale::detail
