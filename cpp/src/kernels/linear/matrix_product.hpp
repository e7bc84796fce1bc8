// SPDX-License-Identifier: BSD-3-Clause
//
// Arguments of the matrix product kernel.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/tile/block.hpp"

namespace attnscale::detail {

/// Maximum rows and columns of the result per kernel call.
inline constexpr int64_t product_rows = 64, product_columns = 256;

/// out(i, j) = sum over k < depth of a(i, k) b(k, j). Row 0 of `a` and column 0 of `b` belong to
/// the result's part; `out` is of the compute type with unit column stride.
struct product_block {
  matrix a, b;
  int64_t rows, columns, depth;
  void* out;
  ptrdiff_t out_stride;
  const stop_signal* stop;
  void* scratch;  ///< 64-byte aligned
};

}  // namespace attnscale::detail
