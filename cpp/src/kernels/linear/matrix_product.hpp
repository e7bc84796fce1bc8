// SPDX-License-Identifier: BSD-3-Clause
//
// What one kernel call of a matrix product works on.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/tile/block.hpp"

namespace attnscale::detail {

/// Rows and columns of the result that one kernel call takes at most.
inline constexpr int64_t product_rows = 64, product_columns = 256;

/// out(i, j) = sum over k < depth of a(i, k) b(k, j). Row 0 of `a` and column 0 of `b` are those of
/// the result's part; `out` is of the compute type, its columns are neighbours.
struct product_block {
  matrix a, b;
  int64_t rows, columns, depth;
  void* out;
  ptrdiff_t out_stride;
  const stop_signal* stop;
  void* scratch;  ///< 64-byte aligned
};

}  // namespace attnscale::detail
