// SPDX-License-Identifier: BSD-3-Clause
//
// A call for the gradients of linear attention: linear_problem's, with the output's gradient.
#pragma once

#include <cstdint>
#include <vector>

#include "attnscale/linear_form.hpp"
#include "attnscale/problem.hpp"

namespace attnscale::detail {

/// One (batch, head): gradients are its own, also where heads share keys.
struct linear_gradient_head {
  const void *query, *key, *value, *grad;
  void *query_out, *key_out, *value_out;
  const double* decay;  ///< of every row; null: none, else norm is `none`
  double* decay_out;
};

struct linear_gradient_problem {
  linear_form form;  ///< its projection: doubles, head_dim x features, contiguous
  matrix_layout query, key, value, grad, query_out, key_out, value_out;
  std::vector<linear_gradient_head> heads;
  std::int64_t n_queries, n_keys;
  bool is_causal;                       ///< query i sees the keys 0 ... i + offset; otherwise all
  std::int64_t offset;                  ///< at least -n_queries, at most n_keys
  const double *query_turn, *key_turn;  ///< cos and sin of every row's angle, of `turned`
};

/// Results are bit-identical for any number of threads. Throws std::bad_alloc and interrupted.
void run(const linear_gradient_problem& problem, const execution& how);

}  // namespace attnscale::detail
