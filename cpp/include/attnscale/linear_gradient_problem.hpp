// SPDX-License-Identifier: BSD-3-Clause
//
// A call for the gradients of linear attention: what linear_problem reads, with the output's
// gradient.
#pragma once

#include <vector>

#include "attnscale/export.hpp"
#include "attnscale/linear_problem.hpp"

namespace attnscale::detail {

/// One (batch, head): gradients are its own, also where heads share keys.
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
ATTNSCALE_EXPORT void run(const linear_gradient_problem& problem, const execution& how);

}  // namespace attnscale::detail
