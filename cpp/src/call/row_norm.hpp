// SPDX-License-Identifier: BSD-3-Clause
//
// attention_options::qk_norm: normalised rows, and their gradients.
#pragma once

#include <vector>

#include "attnscale/detail/strided_array.hpp"
#include "attnscale/options.hpp"

namespace attnscale::detail {

/// Rows of (..., n, head_dim) scaled to the length of `norm`, computed in T.
template <class T>
row_array<T> normalized(const strided_array& array, row_norm norm);

/// Turns the gradient of normalised rows, row-major, into that of the rows `array`: 0 for rows of
/// zeros, and where the gradient was 0, as for rows that no score uses, even if they hold NaN.
template <class T>
void through_norm(const strided_array& array, row_norm norm, T* gradient);

}  // namespace attnscale::detail
