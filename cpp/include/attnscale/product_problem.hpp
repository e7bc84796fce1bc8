// SPDX-License-Identifier: BSD-3-Clause
//
// Products of matrices as the core takes them: pointers and strides.
#pragma once

#include <cstdint>
#include <vector>

#include "attnscale/export.hpp"
#include "attnscale/problem.hpp"
#include "attnscale/types.hpp"

namespace attnscale::detail {

/// Where the matrices of a head begin; out is row-major, of the compute type.
struct product_head {
  const void* a = nullptr;
  const void* b = nullptr;
  void* out = nullptr;
};

/// out = a b with a (rows, depth) and b (depth, columns), in every head.
struct product_problem {
  element_type compute = element_type::float32;  ///< float32 or float64
  std::int64_t rows = 0, depth = 0, columns = 0;
  matrix_layout a{}, b{};
  std::vector<product_head> heads{};
};

/// The same bits for any number of threads.
ATTNSCALE_EXPORT void run(const product_problem& problem, const execution& how);

}  // namespace attnscale::detail
