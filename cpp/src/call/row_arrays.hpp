// SPDX-License-Identifier: BSD-3-Clause
//
// Arrays of per-row numbers that broadcast against each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "attnscale/detail/refuse.hpp"
#include "attnscale/detail/strided_array.hpp"

namespace attnscale::detail {

using axes_of_rows = std::vector<std::int64_t>;

inline std::size_t count(std::span<const std::int64_t> shape) {
  return static_cast<std::size_t>(entries_of(shape));
}

/// The shape of two arrays that fit each other.
inline axes_of_rows broadcast(axes_of_rows a, axes_of_rows b) {
  if (a.size() < b.size()) std::swap(a, b);
  const std::size_t more = a.size() - b.size();
  for (std::size_t axis = 0; axis < b.size(); ++axis)
    if (a[more + axis] == 1) a[more + axis] = b[axis];
  return a;
}

/// Strides along the axes of a shape, 0 for broadcast axes.
inline axes_of_rows strides_in(std::span<const std::int64_t> shape,
                               std::span<const std::int64_t> own) {
  axes_of_rows strides(shape.size(), 0);
  std::int64_t step = 1;
  for (std::size_t k = 1; k <= own.size(); ++k) {
    const std::int64_t extent = own[own.size() - k];
    if (extent != 1) strides[shape.size() - k] = step;
    step *= extent;
  }
  return strides;
}

/// Start of the part of an array that belongs to an index, where `index` runs over the axes of a
/// shape without its last `inner` ones.
inline std::int64_t place(std::int64_t index, std::span<const std::int64_t> shape,
                          std::span<const std::int64_t> strides, std::size_t inner) {
  std::int64_t at = 0;
  for (std::size_t axis = shape.size() - inner; axis-- > 0; index /= shape[axis])
    at += index % shape[axis] * strides[axis];
  return at;
}

/// f of the broadcast entries of two arrays.
template <class A, class B, class F>
auto combine(const row_array<A>& a, const row_array<B>& b, F f) {
  row_array<decltype(f(A(), B()))> found{broadcast(a.extents, b.extents), {}};
  const axes_of_rows& shape = found.extents;
  found.numbers.resize(count(shape));
  const std::int64_t n = shape.empty() ? 1 : shape.back();
  const axes_of_rows of_a = strides_in(shape, a.extents), of_b = strides_in(shape, b.extents);
  const std::int64_t step_a = shape.empty() ? 0 : of_a.back();
  const std::int64_t step_b = shape.empty() ? 0 : of_b.back();
  const std::size_t inner = shape.empty() ? 0 : 1;
  auto* to = found.numbers.data();
  for (std::int64_t outer = 0; to != found.numbers.data() + found.numbers.size(); ++outer) {
    const A* from_a = a.numbers.data() + place(outer, shape, of_a, inner);
    const B* from_b = b.numbers.data() + place(outer, shape, of_b, inner);
    for (std::int64_t i = 0; i < n; ++i) *to++ = f(from_a[i * step_a], from_b[i * step_b]);
  }
  return found;
}

}  // namespace attnscale::detail
