// SPDX-License-Identifier: BSD-3-Clause
//
// Products of matrices per head, for attention variants that transform rows first.
#pragma once

#include <cstdint>

#include "attnscale/dense_array.hpp"
#include "attnscale/detail/call_description.hpp"
#include "attnscale/detail/product_problem.hpp"
#include "attnscale/detail/strided_array.hpp"
#include "attnscale/problem.hpp"

namespace attnscale::detail {

/// a b, (leading..., rows, columns), for arrays whose leading axes broadcast to `leading`.
template <class T>
dense_array<T> matrix_product(const strided_array& a, const strided_array& b,
                              const extents& leading, const execution& how = {}) {
  dense_array<T> out = new_array<T>(leading, {a.extent(2), b.extent(1)});
  multiply(element_type_of<T>, a, b, leading, out.data(), how);
  return out;
}

}  // namespace attnscale::detail
