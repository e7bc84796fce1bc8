// SPDX-License-Identifier: BSD-3-Clause
//
// Product of two matrices of any element type and strides. Both are read in blocks along the inner
// dimension, whose sums are added: a float sum has at most a block of terms.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/linear/matrix_product.hpp"
#include "kernels/linear/rows-inl.hpp"
#include "kernels/stop_signal.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::detail::product_block;

/// Terms per register sum, and rows of b that stay in the cache while rows of a are processed.
constexpr int64_t product_depth = 256;

template <class T>
struct product_workspace {
  int64_t lanes;  ///< per row of the result, whole vectors
  T *a, *b, *part, *sum;

  product_workspace(const product_block& p, arena& memory) : lanes(whole_vectors<T>(p.columns)) {
    a = memory.take<T>(p.rows * product_depth);
    b = memory.take<T>(product_depth * lanes);
    part = memory.take<T>(p.rows * lanes);
    sum = memory.take<T>(p.rows * lanes);
  }
};

/// The matrix without its first columns.
inline matrix columns_from(const matrix& m, int64_t first) {
  const ptrdiff_t step = m.layout.column * item_size(m.layout.type);
  return {static_cast<const char*>(m.data) + first * step, m.layout};
}

template <class T>
inline void matrix_product(const product_block& p) noexcept {
  arena memory{static_cast<char*>(p.scratch)};
  const product_workspace<T> ws(p, memory);
  const int64_t elements = p.rows * ws.lanes;
  for (int64_t i = 0; i < elements; ++i) ws.sum[i] = T(0);
  for (int64_t k = 0; k < p.depth && !p.stop->requested(); k += product_depth) {
    const int64_t depth = p.depth - k < product_depth ? p.depth - k : product_depth;
    const row_view<T> a = view_rows<T>(columns_from(p.a, k), 0, p.rows, depth, ws.a);
    const row_view<T> b = whole_rows<T>(p.b, k, depth, p.columns, ws.b);
    product<T, false>(a, b, ws.lanes, p.rows, depth, {ws.part, ws.lanes});
    for (int64_t i = 0; i < elements; ++i) ws.sum[i] += ws.part[i];
  }
  for (int64_t r = 0; r < p.rows; ++r) {
    T* const out = static_cast<T*>(p.out) + r * p.out_stride;
    for (int64_t c = 0; c < p.columns; ++c) out[c] = ws.sum[r * ws.lanes + c];
  }
}

}  // namespace
