// SPDX-License-Identifier: BSD-3-Clause
//
// Rows of keys and values for a few queries in their storage type: 16-bit numbers become float when
// loaded, so only half the bytes are read.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/types.hpp"
#include "kernels/simd/float16.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/rows-inl.hpp"

namespace {

using attnscale::element_type;
using attnscale::detail::matrix;

/// Conversion of elements to the compute type: a vector of them, or a single one.
template <class T>
struct as_stored {
  using element = T;
  static ATTNSCALE_INLINE vec<T> read(const T* p) { return load(p); }
  static ATTNSCALE_INLINE T value(T x) { return x; }
};
struct from_float16 {
  using element = uint16_t;
  static ATTNSCALE_INLINE vec<float> read(const uint16_t* p) { return load_float16(p); }
  static ATTNSCALE_INLINE float value(uint16_t x) { return float_from_float16(x); }
};
struct from_bfloat16 {
  using element = uint16_t;
  static ATTNSCALE_INLINE vec<float> read(const uint16_t* p) { return load_bfloat16(p); }
  static ATTNSCALE_INLINE float value(uint16_t x) { return float_from_bfloat16(x); }
};

/// A tile of rows of neighbouring elements of `type`.
struct stored_rows {
  const void* data;
  ptrdiff_t stride;  ///< in elements
  element_type type;
};

/// Calls f(as_stored<T>{}, row_view<T>), or the same with 16-bit elements.
template <class T, class F>
ATTNSCALE_INLINE void with_elements(const stored_rows& rows, F&& f) {
  if constexpr (sizeof(T) == sizeof(float)) {
    const row_view<uint16_t> half{static_cast<const uint16_t*>(rows.data), rows.stride};
    if (rows.type == element_type::float16) return f(from_float16{}, half);
    if (rows.type == element_type::bfloat16) return f(from_bfloat16{}, half);
  }
  f(as_stored<T>{}, row_view<T>{static_cast<const T*>(rows.data), rows.stride});
}

/// Whether `queries` queries read a tile of m in place. Several queries would each convert it, so
/// it is converted once for all of them.
template <class T>
inline bool is_read_in_place(const matrix& m, int queries) {
  const bool half =
      m.layout.type == element_type::float16 || m.layout.type == element_type::bfloat16;
  return is_direct<T>(m.layout) ||
         (sizeof(T) == sizeof(float) && half && m.layout.column == 1 && queries == 1);
}

/// Rows [row, row + rows) of m, in place or as T in `copy`.
template <class T>
inline stored_rows view_stored(const matrix& m, int queries, int64_t row, int64_t rows,
                               int64_t columns, T* copy) {
  if (is_read_in_place<T>(m, queries))
    return {static_cast<const char*>(m.data) + row * m.layout.row * item_size(m.layout.type),
            m.layout.row, m.layout.type};
  const row_view<T> view = view_rows(m, row, rows, columns, copy);
  return {view.data, view.stride, native<T>};
}

}  // namespace
