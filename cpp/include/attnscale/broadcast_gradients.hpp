// SPDX-License-Identifier: BSD-3-Clause
//
// Gradients where arrays broadcast: an output gradient made whole, and sums over heads that share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attnscale/check.hpp"
#include "attnscale/dense_array.hpp"
#include "attnscale/describe.hpp"
#include "attnscale/strided_array.hpp"

namespace attnscale::detail {

/// A gradient by an output of shape (rows..., value_dim), which messages call `what`.
template <class T, class G>
dense_array<T> whole_grad(const G& grad_output, const extents& rows, std::int64_t value_dim,
                          const char* what) {
  check_broadcast("grad_output", strided_array(grad_output, 2), joined(rows, {value_dim}), what);
  dense_array<T> whole = new_array<T>(rows, {value_dim});
  whole = xt::cast<T>(xt::broadcast(grad_output, whole.shape()));
  return whole;
}

/// What heads have, added up to the shape of what they share. The last two axes of `heads`, or the
/// last one, are rows x columns of each head.
template <class T>
dense_array<T> sum_heads(const dense_array<T>& heads, const extents& leading, const extents& shape,
                         int inner) {
  dense_array<double> sum =
      dense_array<double>::from_shape(std::vector<std::size_t>(shape.begin(), shape.end()));
  sum.fill(0);
  const strided_array from(heads, inner), to(sum, inner);
  const std::int64_t rows = inner == 2 ? from.extent(2) : 1, columns = from.extent(1);
  const std::ptrdiff_t row_step = inner == 2 ? to.stride(2) : 0, column_step = to.stride(1);
  for_each_index(leading, [&](const extents& index) {
    const auto* number = static_cast<const T*>(from.at(index, leading));
    auto* const at = static_cast<double*>(const_cast<void*>(to.at(index, leading)));
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t column = 0; column < columns; ++column)
        at[row * row_step + column * column_step] += static_cast<double>(*number++);
  });
  return xt::cast<T>(sum);
}

}  // namespace attnscale::detail
