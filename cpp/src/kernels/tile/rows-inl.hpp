// SPDX-License-Identifier: BSD-3-Clause
//
// Copies of rows between the caller's memory (any element type, any strides) and the kernels'
// layouts: plain rows of T, and panels [channel][lane] with the queries in the lanes.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/types.hpp"
#include "kernels/simd/float16.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/block.hpp"

namespace {

using attnscale::element_type;
using attnscale::matrix_layout;
using attnscale::detail::matrix;

/// Consecutive vectors of queries of a block, from row `lane` on.
struct query_panel {
  int lane, vectors;  ///< vectors: 1 to panel_vectors
};

/// A tile of rows that a product can read: element (r, c) at data[r * stride + c].
template <class T>
struct row_view {
  row_view() = default;
  row_view(const T* first, int64_t columns)
      : data(first), stride(static_cast<ptrdiff_t>(columns)) {}

  const T* data;
  ptrdiff_t stride;
};

template <class T>
constexpr element_type native = sizeof(T) == 4 ? element_type::float32 : element_type::float64;

/// Bytes per element.
constexpr ptrdiff_t item_size(element_type type) {
  return type == element_type::float64 ? 8 : type == element_type::float32 ? 4 : 2;
}

template <class T>
inline T read_element(const void* data, element_type type, ptrdiff_t i) {
  switch (type) {
    case element_type::float32:
      return static_cast<T>(static_cast<const float*>(data)[i]);
    case element_type::float64:
      return static_cast<T>(static_cast<const double*>(data)[i]);
    case element_type::float16:
      return static_cast<T>(float_from_float16(static_cast<const uint16_t*>(data)[i]));
    case element_type::bfloat16:
      return static_cast<T>(float_from_bfloat16(static_cast<const uint16_t*>(data)[i]));
  }
  __builtin_unreachable();
}

/// Converts the leading elements of a contiguous row of a narrower type, a vector at a time;
/// returns their number.
inline int64_t widen_vectors(const void* data, element_type type, ptrdiff_t start, int64_t count,
                             float* out) {
  const uint16_t* in = static_cast<const uint16_t*>(data) + start;
  int64_t i = 0;
  if (type == element_type::float16)
    for (; i + width<float> <= count; i += width<float>) store(out + i, load_float16(in + i));
  else
    for (; i + width<float> <= count; i += width<float>) store(out + i, load_bfloat16(in + i));
  return i;
}
inline int64_t widen_vectors(const void* data, element_type type, ptrdiff_t start, int64_t count,
                             double* out) {
  if (type == element_type::float32) {
    const float* const in = static_cast<const float*>(data) + start;
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<double>(in[i]);
    return count;
  }
  float copy[width<float>];
  int64_t i = 0;
  for (; i + width<float> <= count; i += width<float>) {
    widen_vectors(data, type, start + i, width<float>, copy);
    for (int k = 0; k < width<float>; ++k) out[i + k] = static_cast<double>(copy[k]);
  }
  return i;
}

template <class T>
inline bool is_direct(const matrix_layout& layout) {
  return layout.type == native<T> && layout.column == 1;
}

/// out[i] = element (row, i) of m for i < count.
template <class T>
inline void read_row(const matrix& m, int64_t row, int64_t count, T* out) {
  const ptrdiff_t start = row * m.layout.row;
  int64_t i = 0;
  if (item_size(m.layout.type) < static_cast<ptrdiff_t>(sizeof(T)) && m.layout.column == 1)
    i = widen_vectors(m.data, m.layout.type, start, count, out);
  if (is_direct<T>(m.layout))
    for (const T* const in = static_cast<const T*>(m.data) + start; i + width<T> <= count;
         i += width<T>)
      store(out + i, load(in + i));
  for (; i < count; ++i)
    out[i] = read_element<T>(m.data, m.layout.type, start + i * m.layout.column);
}

/// out[i * step] = convert(in[i]). The step of nearly all arrays is a constant here, so that the
/// compiler vectorises.
template <class Element, class T, class Convert>
inline void write_elements(Element* out, ptrdiff_t step, int64_t count, const T* in,
                           Convert convert) {
  if (step == 1)
    for (int64_t i = 0; i < count; ++i) out[i] = convert(in[i]);
  else
    for (int64_t i = 0; i < count; ++i) out[i * step] = convert(in[i]);
}

template <class T>
inline void write_row(void* data, const matrix_layout& layout, int64_t row, int64_t count,
                      const T* in) {
  const ptrdiff_t start = row * layout.row, step = layout.column;
  const auto write = [&](auto* elements, auto convert) {
    write_elements(elements + start, step, count, in, convert);
  };
  switch (layout.type) {
    case element_type::float32:
      return write(static_cast<float*>(data), [](T x) { return static_cast<float>(x); });
    case element_type::float64:
      return write(static_cast<double*>(data), [](T x) { return static_cast<double>(x); });
    case element_type::float16:
      return write(static_cast<uint16_t*>(data),
                   [](T x) { return float16_from_float(static_cast<float>(x)); });
    case element_type::bfloat16:
      return write(static_cast<uint16_t*>(data),
                   [](T x) { return bfloat16_from_float(static_cast<float>(x)); });
  }
}

/// Rows to prefetch one at a time during a product. A burst would stall: a core has about twenty
/// lines in flight.
class prefetcher {
 public:
  prefetcher() = default;

  /// Rows [row, row + rows) of a matrix, as far as they are contiguous. They may extend past its
  /// end.
  prefetcher(const void* data, const matrix_layout& layout, int64_t row, int64_t rows,
             int64_t columns) {
    const ptrdiff_t size = item_size(layout.type);
    if (layout.column != 1 || !data) return;
    stride_ = layout.row * size;
    bytes_ = columns * size;
    rows_ = rows;
    // As an integer: the address may be outside the array, and is never read.
    next_ = reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(row * stride_);
  }

  ATTNSCALE_INLINE void next() {
    constexpr ptrdiff_t line = 64;
    if (rows_ <= 0) return;
    for (ptrdiff_t at = 0; at < bytes_; at += line)
      // NOLINTNEXTLINE(performance-no-int-to-ptr): see above
      __builtin_prefetch(reinterpret_cast<const void*>(next_ + static_cast<uintptr_t>(at)));
    next_ += static_cast<uintptr_t>(stride_);
    --rows_;
  }

 private:
  uintptr_t next_ = 0;
  ptrdiff_t stride_ = 0, bytes_ = 0;
  int64_t rows_ = 0;
};

/// Several prefetchers, each two rows further at a time.
struct prefetches {
  prefetcher rows[4];

  ATTNSCALE_INLINE void next() {
    for (prefetcher& each : rows) each.next(), each.next();
  }
};

/// Rows [row, row + rows) of m as T: in place if the layout allows it, else copied.
template <class T>
inline row_view<T> view_rows(const matrix& m, int64_t row, int64_t rows, int64_t columns, T* copy) {
  if (is_direct<T>(m.layout))
    return {static_cast<const T*>(m.data) + row * m.layout.row, m.layout.row};
  for (int64_t r = 0; r < rows; ++r) read_row(m, row + r, columns, copy + r * columns);
  return {copy, columns};
}

/// Transposes a square of width x width elements by log2(width) rounds of interleaving.
template <class T>
ATTNSCALE_INLINE void transpose(vec<T> (&v)[width<T>]) {
  constexpr int w = width<T>;
#pragma GCC unroll 4
  for (int round = 1; round < w; round *= 2) {
    vec<T> u[w];
#pragma GCC unroll 16
    for (int i = 0; i < w / 2; ++i) {
      u[2 * i] = interleave_low(v[i], v[i + w / 2]);
      u[2 * i + 1] = interleave_high(v[i], v[i + w / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < w; ++i) v[i] = u[i];
  }
}

/// Transposes rows of `in` into lanes: panel[c * lanes + r] = in(r, c) for one vector of rows.
template <class T>
inline void rows_to_lanes(row_view<T> in, int64_t columns, T* panel, ptrdiff_t lanes) {
  constexpr int w = width<T>;
  int64_t c = 0;
  for (; c + w <= columns; c += w) {
    vec<T> v[w];
#pragma GCC unroll 16
    for (int r = 0; r < w; ++r) v[r] = load(in.data + r * in.stride + c);
    transpose<T>(v);
#pragma GCC unroll 16
    for (int k = 0; k < w; ++k) store(panel + (c + k) * lanes, v[k]);
  }
  for (; c < columns; ++c)
    for (int r = 0; r < w; ++r) panel[c * lanes + r] = in.data[r * in.stride + c];
}

/// Transposes back, with a factor per lane: out[r * stride + c] = panel[c * lanes + r] * factor[r].
template <class T>
inline void lanes_to_rows(const T* panel, ptrdiff_t lanes, int64_t columns, vec<T> factor, int rows,
                          T* out, ptrdiff_t stride) {
  constexpr int w = width<T>;
  int64_t c = 0;
  for (; c + w <= columns; c += w) {
    vec<T> v[w];
#pragma GCC unroll 16
    for (int k = 0; k < w; ++k) v[k] = load(panel + (c + k) * lanes) * factor;
    transpose<T>(v);
#pragma GCC unroll 16
    for (int r = 0; r < w; ++r)
      if (r < rows) store(out + r * stride + c, v[r]);
  }
  T last[w];
  for (; c < columns; ++c) {
    store(last, load(panel + c * lanes) * factor);
    for (int r = 0; r < rows; ++r) out[r * stride + c] = last[r];
  }
}

/// Packs `rows` rows of m, from `row` on, into one vector of lanes; missing rows are zero.
template <class T>
inline void pack_lanes(const matrix& m, int64_t row, int rows, int64_t columns, T* copy, T* panel,
                       ptrdiff_t lanes) {
  constexpr int w = width<T>;
  if (rows >= w) return rows_to_lanes(view_rows(m, row, w, columns, copy), columns, panel, lanes);
  for (int r = 0; r < w; ++r) {
    if (r < rows) {
      read_row(m, row + r, columns, copy + r * columns);
    } else {
      for (int64_t c = 0; c < columns; ++c) copy[r * columns + c] = T(0);
    }
  }
  rows_to_lanes(row_view<T>{copy, columns}, columns, panel, lanes);
}

}  // namespace
