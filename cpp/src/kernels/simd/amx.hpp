// SPDX-License-Identifier: BSD-3-Clause
//
// Products of bfloat16 matrices in the eight tile registers of AMX: 16 rows of 64 bytes each. A
// thread loads its tile shapes before the first product and releases them after the last one, which
// keeps its context switches short.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/simd.hpp"

#if defined(ATTNSCALE_HAS_AMX)
#include <immintrin.h>
#else
#include "kernels/simd/emulated_amx.hpp"
#endif

namespace {

/// Rows of a tile, and pairs of bfloat16 in one of its rows: a full register has 16.
constexpr int amx_rows = width<float>;

/// Bytes per row of a tile.
constexpr ptrdiff_t amx_row_bytes = 4 * amx_rows;

/// Operand of LDTILECFG.
struct amx_shapes {
  static constexpr uint16_t row_bytes = amx_row_bytes;
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_of_row[16] = {row_bytes, row_bytes, row_bytes, row_bytes,
                               row_bytes, row_bytes, row_bytes, row_bytes};
  uint8_t rows[16] = {amx_rows, amx_rows, amx_rows, amx_rows,
                      amx_rows, amx_rows, amx_rows, amx_rows};
};

/// Full tiles for this thread, for the lifetime of the object.
class amx_tiles {
 public:
  amx_tiles() {
    const amx_shapes shapes;
    asm volatile("" ::"m"(shapes));
    _tile_loadconfig(&shapes);
  }
  ~amx_tiles() { _tile_release(); }
  amx_tiles(const amx_tiles&) = delete;
  amx_tiles& operator=(const amx_tiles&) = delete;
};

/// A block of M x N tiles of c = a b (Add: c += a b), with R = amx_rows rows per tile. a: R M rows
/// of pairs, `a_row` bytes apart. b: R pairs of neighbouring rows per step, `b_row` bytes apart,
/// each R N columns of pairs. c: R M rows of R N floats, `c_row` bytes apart. Each step advances by
/// R pairs. Loads stand between products that do not depend on them.
template <int M, int N, bool Add>
ATTNSCALE_INLINE void multiply_tiles(const void* a, ptrdiff_t a_row, const void* b, ptrdiff_t b_row,
                                     int steps, float* c, ptrdiff_t c_row) {
  constexpr ptrdiff_t line = amx_row_bytes;
  const char* a0 = static_cast<const char*>(a);
  const char* a1 = a0 + amx_rows * a_row;
  const char* b0 = static_cast<const char*>(b);
  char* const c0 = reinterpret_cast<char*>(c);
  char* const c1 = c0 + amx_rows * c_row;
  asm volatile("" ::: "memory");  // the intrinsics of g++ 12 do not say that they read memory
  if constexpr (Add) {
    _tile_loadd(0, c0, c_row);
    if constexpr (N == 2) _tile_loadd(1, c0 + line, c_row);
    if constexpr (M == 2) _tile_loadd(2, c1, c_row);
    if constexpr (M == 2 && N == 2) _tile_loadd(3, c1 + line, c_row);
  } else {
    _tile_zero(0);
    if constexpr (N == 2) _tile_zero(1);
    if constexpr (M == 2) _tile_zero(2);
    if constexpr (M == 2 && N == 2) _tile_zero(3);
  }
  for (int k = 0; k < steps; ++k) {
    _tile_loadd(4, a0, a_row);
    _tile_loadd(6, b0, b_row);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (N == 2) {
      _tile_loadd(7, b0 + line, b_row);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (M == 2) {
      _tile_loadd(5, a1, a_row);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (N == 2) _tile_dpbf16ps(3, 5, 7);
    }
    a0 += line, a1 += line, b0 += amx_rows * b_row;
  }
  _tile_stored(0, c0, c_row);
  if constexpr (N == 2) _tile_stored(1, c0 + line, c_row);
  if constexpr (M == 2) _tile_stored(2, c1, c_row);
  if constexpr (M == 2 && N == 2) _tile_stored(3, c1 + line, c_row);
  asm volatile("" ::: "memory");
}

}  // namespace
