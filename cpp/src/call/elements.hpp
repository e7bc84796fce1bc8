// SPDX-License-Identifier: BSD-3-Clause
//
// Where the elements of a matrix of any type and strides lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "attnscale/types.hpp"

namespace attnscale::detail {

/// Bytes of an element. The kernels have one of their own (rows-inl.hpp): what they call may not be
/// linked into other code.
inline std::ptrdiff_t item_size(element_type type) {
  return type == element_type::float64 ? 8 : type == element_type::float32 ? 4 : 2;
}

/// Start of a row; null of a matrix that is not there.
template <class Pointer>
Pointer row_at(Pointer data, const matrix_layout& layout, std::int64_t row) {
  using byte =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  return data ? static_cast<byte*>(data) + row * layout.row * item_size(layout.type) : nullptr;
}

}  // namespace attnscale::detail
