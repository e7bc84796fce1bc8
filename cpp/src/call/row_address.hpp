// SPDX-License-Identifier: BSD-3-Clause
//
// Addresses of the elements of a matrix of any type and strides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "attnscale/types.hpp"

namespace attnscale::detail {

/// Bytes per element. The kernels have their own (rows-inl.hpp), since code that they call may not
/// be shared.
inline std::ptrdiff_t item_size(element_type type) {
  return type == element_type::float64 ? 8 : type == element_type::float32 ? 4 : 2;
}

/// Start of a row; null for an absent matrix.
template <class Pointer>
Pointer row_at(Pointer data, const matrix_layout& layout, std::int64_t row) {
  using byte =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  return data ? static_cast<byte*>(data) + row * layout.row * item_size(layout.type) : nullptr;
}

}  // namespace attnscale::detail
