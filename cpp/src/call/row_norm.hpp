// SPDX-License-Identifier: BSD-3-Clause
//
// attention_options::qk_norm: rows of a length, and the way back of their gradients.
#pragma once

#include <vector>

#include "attnscale/detail/strided_array.hpp"
#include "attnscale/options.hpp"

namespace attnscale::detail {

/// The rows of (..., n, head_dim) brought to the length of `norm`, in the arithmetic of T.
template <class T>
row_array<T> normalized(const strided_array& array, row_norm norm);

/// Turns the gradient of normalised rows, row-major, into that of the rows `array`: 0 for rows of
/// zeros, and where it was 0, which holds for rows that nothing sees even if they hold a NaN.
template <class T>
void through_norm(const strided_array& array, row_norm norm, T* gradient);

}  // namespace attnscale::detail
