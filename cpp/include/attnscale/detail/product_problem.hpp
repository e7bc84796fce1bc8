// SPDX-License-Identifier: BSD-3-Clause
//
// Products of matrices for the core: pointers and strides.
#pragma once

#include <cstdint>
#include <vector>

#include "attnscale/detail/export.hpp"
#include "attnscale/detail/strided_array.hpp"
#include "attnscale/problem.hpp"
#include "attnscale/types.hpp"

namespace attnscale::detail {

/// Starts of the matrices of a head; out is row-major, of the compute type.
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

/// Results are bit-identical for any number of threads.
ATTNSCALE_EXPORT void run(const product_problem& problem, const execution& how);

/// Products in row-major memory, for arrays whose leading axes broadcast to `leading`.
inline void multiply(element_type compute, const strided_array& a, const strided_array& b,
                     const extents& leading, void* out, const execution& how) {
  product_problem problem{compute, a.extent(2), a.extent(1), b.extent(1), a.layout(), b.layout()};
  auto* place = static_cast<char*>(out);
  const std::ptrdiff_t item = compute == element_type::float64 ? 8 : 4;
  for_each_index(leading, [&](const extents& index) {
    problem.heads.push_back({a.at(index, leading), b.at(index, leading), place});
    place += problem.rows * problem.columns * item;
  });
  run(problem, how);
}

}  // namespace attnscale::detail
