// SPDX-License-Identifier: BSD-3-Clause
//
// Emulation, for tests, of the AMX instructions that amx.hpp uses, with tile registers in memory.
// TDPBF16PS sums the products of the low numbers of the pairs and of the high ones separately, each
// with one rounding to nearest even, and then adds both sums to the result; denormal numbers are
// zeros. A product without loaded tile shapes is an illegal instruction, as on a CPU.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/emulated_bfloat16.hpp"
#include "kernels/simd/simd.hpp"

namespace {

/// Registers of a thread: rows of as many pairs, or floats, as a vector has lanes.
struct emulated_tiles {
  uint32_t row[8][width<float>][width<float>];
  bool shaped;
};
thread_local emulated_tiles tile_registers;

/// The registers; traps if no shape is loaded.
inline emulated_tiles& shaped_tiles() {
  if (!tile_registers.shaped) __builtin_trap();
  return tile_registers;
}

template <class Shapes>
inline void load_tile_shapes(const Shapes* shapes) {
  for (int i = 0; i < 8; ++i)
    if (shapes->rows[i] != width<float> || shapes->bytes_of_row[i] != 4 * width<float>)
      __builtin_trap();
  tile_registers.shaped = true;
}

inline void load_tile(int tile, const void* from, ptrdiff_t row) {
  for (int r = 0; r < width<float>; ++r)
    __builtin_memcpy(shaped_tiles().row[tile][r], static_cast<const char*>(from) + r * row,
                     4 * width<float>);
}

inline void store_tile(int tile, void* to, ptrdiff_t row) {
  for (int r = 0; r < width<float>; ++r)
    __builtin_memcpy(static_cast<char*>(to) + r * row, shaped_tiles().row[tile][r],
                     4 * width<float>);
}

inline void clear_tile(int tile) {
  for (auto& row : shaped_tiles().row[tile]) store(row, broadcast(0u));
}

inline void add_tile_products(int c, int a, int b) {
  emulated_tiles& of = shaped_tiles();
  for (int m = 0; m < width<float>; ++m) {
    vec<float> low = broadcast(0.0f), high = low;
    for (int k = 0; k < width<float>; ++k) {
      const vec<uint32_t> x = broadcast(of.row[a][m][k]), y = load(of.row[b][k]);
      low = flushed(fma(low_of(x), low_of(y), low));
      high = flushed(fma(high_of(x), high_of(y), high));
    }
    const vec<float> before = flushed(from_bits(load(of.row[c][m])));
    store(of.row[c][m], as_bits(flushed(before + flushed(low + high))));
  }
}

}  // namespace

// Compilers define most of these names as macros, also for CPUs without AMX.
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(shapes) load_tile_shapes(shapes)
#define _tile_release() (void)(tile_registers.shaped = false)
#define _tile_loadd(tile, from, row) load_tile(tile, from, row)
#define _tile_stored(tile, to, row) store_tile(tile, to, row)
#define _tile_zero(tile) clear_tile(tile)
#define _tile_dpbf16ps(c, a, b) add_tile_products(c, a, b)
