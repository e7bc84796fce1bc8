// SPDX-License-Identifier: BSD-3-Clause
//
// What an ISA translation unit offers to the rest of the core: plain structs and function
// pointers, no templates, no std types (the units that include this are compiled with AVX flags
// and must not emit code that other units could link to).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/types.hpp"

namespace attnscale::detail {

struct stop_signal;
struct attend_block;
struct curve_block;
struct fill_block;
struct gradient_block;
struct linear_block;
struct linear_form;
struct linear_gradient_block;
struct solve_block;
struct simulated_row_block;
struct sample_block;
struct projection_block;
struct distance_block;

/// The kernels for one compute type (float or double).
struct typed_kernels {
  int block_rows;  ///< queries that one call of attend / curve takes at most
  size_t (*attend_scratch)(const attend_block& block);  ///< bytes of 64-byte aligned scratch
  void (*attend)(const attend_block& block) noexcept;
  size_t (*curve_scratch)(const curve_block& block);
  void (*curve)(const curve_block& block) noexcept;
  int lanes;       ///< queries of one vector
  int panel_rows;  ///< queries that one call of solve_* takes at most
  size_t (*solve_scratch)(const solve_block& block);
  void (*solve_gather)(const solve_block& block) noexcept;
  void (*solve_evaluate)(const solve_block& block) noexcept;
  /// Independent multiply-adds in registers for `rounds` rounds: returns the number of floating
  /// point operations done (2 an element) and writes a value that depends on all of them.
  double (*fma_peak)(int64_t rounds, double* sink) noexcept;
  void (*fill)(const fill_block& block) noexcept;
  size_t (*linear_scratch)(const linear_form& form);
  void (*linear)(const linear_block& block) noexcept;
  int gradient_rows;  ///< queries that one call of gradient takes at most
  size_t (*gradient_scratch)(const gradient_block& block);
  void (*gradient)(const gradient_block& block) noexcept;
  size_t (*linear_gradient_scratch)(const linear_form& form);
  void (*linear_query_gradients)(const linear_gradient_block& block) noexcept;
  void (*linear_key_gradients)(const linear_gradient_block& block) noexcept;
};

struct level_kernels {
  const char* name;
  typed_kernels float32;
  typed_kernels float64;
  /// Reads `bytes` bytes (a multiple of 1024, 64-byte aligned) and returns a sum of what it read.
  double (*read_memory)(const void* data, size_t bytes) noexcept;
  void (*simulate_row)(simulated_row_block& block) noexcept;
  void (*dots)(const sample_block& block) noexcept;
  int panel_columns;  ///< columns, or points, of a panel of project and distance_ratios
  size_t (*project_scratch)(const projection_block& block);
  void (*project)(const projection_block& block) noexcept;
  size_t (*distance_scratch)(const distance_block& block);
  void (*distance_ratios)(const distance_block& block) noexcept;
};

#if defined(__x86_64__) || defined(_M_X64)
extern const level_kernels baseline_kernels;
extern const level_kernels avx2_kernels;
extern const level_kernels avx512_kernels;
#elif defined(__aarch64__)
extern const level_kernels neon_kernels;
#else
extern const level_kernels baseline_kernels;
#endif

/// The table of the level in use (see simd_level.hpp).
const level_kernels& active_kernels();

}  // namespace attnscale::detail
