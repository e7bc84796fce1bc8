// SPDX-License-Identifier: BSD-3-Clause
//
// Calls of linear attention and of its gradients: heads, visible keys, and sums that outlive the
// call.
#pragma once

#include <cstdint>
#include <vector>

#include "attnscale/detail/export.hpp"
#include "attnscale/detail/linear_form.hpp"
#include "attnscale/problem.hpp"

namespace attnscale::detail {

/// Inputs of a (batch, head), forward and backward. Null: the call has no queries, or no keys.
struct linear_inputs_of_head {
  const void* query;
  const void* key;
  const void* value;
  const double* decay;  ///< per row, not cumulative; null: no decay, else norm is `none`
};

/// The sequence of a call, forward and backward: sizes, layouts and positions.
struct linear_sequence {
  linear_form form;  ///< its projection: doubles, head_dim x features, contiguous
  matrix_layout query, key, value;
  std::int64_t n_queries, n_keys;
  bool is_causal;                       ///< query i sees keys 0 ... i + offset; otherwise all
  std::int64_t offset;                  ///< at least -n_queries, at most n_keys
  const double *query_turn, *key_turn;  ///< cos and sin of every row's angle, for `turned`
};

/// One (batch, head).
struct linear_head : linear_inputs_of_head {
  void* output;
  linear_sums sums;  ///< read before any key; without queries: the keys are added to it
};

struct linear_problem : linear_sequence {
  matrix_layout output;
  std::vector<linear_head> heads;
  std::int64_t n_summed;  ///< number of keys in linear_head::sums
};

/// One (batch, head). It has its own gradients even where heads share keys.
struct linear_gradient_head : linear_inputs_of_head {
  const void* grad;
  void *query_out, *key_out, *value_out;
  double* decay_out;
};

struct linear_gradient_problem : linear_sequence {
  matrix_layout grad, query_out, key_out, value_out;
  std::vector<linear_gradient_head> heads;
};

/// Results are bit-identical for any number of threads. Throws std::bad_alloc and interrupted.
ATTNSCALE_EXPORT void run(const linear_problem& problem, const execution& how);
ATTNSCALE_EXPORT void run(const linear_gradient_problem& problem, const execution& how);

}  // namespace attnscale::detail
