// SPDX-License-Identifier: BSD-3-Clause
//
// Products of matrices, one a head: what some attentions do to rows before they attend.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "attnscale/dense_array.hpp"
#include "attnscale/describe.hpp"
#include "attnscale/problem.hpp"
#include "attnscale/product_problem.hpp"
#include "attnscale/strided_array.hpp"

namespace attnscale::detail {

/// All axes but the last two.
inline extents leading_of(const strided_array& array) {
  const extents& shape = array.shape();
  return {shape.begin(), shape.end() - 2};
}

/// What the leading axes of two arrays broadcast to.
inline extents broadcast_leading(named_array a, named_array b) {
  const int n = std::max(a.array->n_leading(), b.array->n_leading());
  extents leading(static_cast<std::size_t>(n), 1);
  bool fits = true;
  for (const named_array& each : {a, b})
    for (int axis = 0; axis < n; ++axis)
      fits &= broadcast_extent(leading[std::size_t(axis)], each.array->leading_extent(n - axis));
  if (!fits)
    refuse(std::string("the leading axes of ") + a.name + " and " + b.name +
           " must broadcast, got " + text_of(leading_of(*a.array)) + " and " +
           text_of(leading_of(*b.array)));
  return leading;
}

/// a b, (leading..., rows, columns), for arrays whose leading axes broadcast to `leading`.
template <class T>
dense_array<T> matrix_product(const strided_array& a, const strided_array& b,
                              const extents& leading, const execution& how = {}) {
  dense_array<T> out = new_array<T>(leading, {a.extent(2), b.extent(1)});
  product_problem problem{element_type_of<T>, a.extent(2), a.extent(1),
                          b.extent(1),        a.layout(),  b.layout()};
  T* place = out.data();
  for_each_index(leading, [&](const extents& index) {
    problem.heads.push_back({a.at(index, leading), b.at(index, leading), place});
    place += problem.rows * problem.columns;
  });
  run(problem, how);
  return out;
}

}  // namespace attnscale::detail
