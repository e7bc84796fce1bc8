// SPDX-License-Identifier: BSD-3-Clause
//
// What the kernels offer to the rest of the core: plain structs and function pointers, no
// templates, no std types (the units that include this are compiled with AVX flags and must not
// emit code that other units could link to).
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
struct gradient_rows;
struct linear_block;
struct linear_form;
struct linear_gradient_block;
struct product_block;
struct solve_block;
struct simulated_row_block;
struct sample_block;
struct projection_block;
struct distance_block;

/// Attention of a block of queries.
struct attend_kernels {
  int block_rows;                                ///< queries that one call of run takes at most
  size_t (*scratch)(const attend_block& block);  ///< bytes of 64-byte aligned scratch
  void (*run)(const attend_block& block) noexcept;
};

struct curve_kernels {
  int block_rows;
  size_t (*scratch)(const curve_block& block);
  void (*run)(const curve_block& block) noexcept;
};

struct solve_kernels {
  int lanes;       ///< queries of one vector
  int panel_rows;  ///< queries that one call of gather or evaluate takes at most
  size_t (*scratch)(const solve_block& block);
  void (*gather)(const solve_block& block) noexcept;
  void (*evaluate)(const solve_block& block) noexcept;
};

struct gradient_kernels {
  int block_rows;
  size_t (*scratch)(const gradient_block& block);
  /// What the rows of a forward pass, which has run, have in `given` from row `first` on: under the
  /// normalizers with weights of single scores that have no lse.
  void (*describe)(const attend_block& forward, int first, gradient_rows& given) noexcept;
  void (*run)(const gradient_block& block) noexcept;
};

struct linear_kernels {
  size_t (*scratch)(const linear_form& form);
  void (*run)(const linear_block& block) noexcept;
};

struct linear_gradient_kernels {
  size_t (*scratch)(const linear_form& form);
  void (*query_gradients)(const linear_gradient_block& block) noexcept;
  void (*key_gradients)(const linear_gradient_block& block) noexcept;
};

struct product_kernels {
  size_t (*scratch)(const product_block& block);
  void (*run)(const product_block& block) noexcept;
};

/// Independent multiply-adds in registers for `rounds` rounds: returns the number of floating
/// point operations done (2 an element) and writes a value that depends on all of them.
using fma_peak_kernel = double (*)(int64_t rounds, double* sink) noexcept;
using fill_kernel = void (*)(const fill_block& block) noexcept;

// What each file of units/ compiles, for both compute types.

struct softmax_unit {
  attend_kernels float32, float64;
};

/// Normalizers that look at all scores of a row at once: entmax and top-k.
struct sparse_unit {
  attend_kernels float32, float64;
};

struct scales_unit {
  curve_kernels curve_float32, curve_float64;
  solve_kernels solve_float32, solve_float64;
};

struct gradient_unit {
  gradient_kernels float32, float64;
};

struct linear_unit {
  linear_kernels float32, float64;
  product_kernels product_float32, product_float64;
};

struct linear_gradient_unit {
  linear_gradient_kernels float32, float64;
};

struct random_unit {
  fill_kernel fill_float32, fill_float64;
  void (*simulate_row)(simulated_row_block& block) noexcept;
  void (*dots)(const sample_block& block) noexcept;
  int panel_columns;  ///< columns, or points, of a panel of project and distance_ratios
  size_t (*project_scratch)(const projection_block& block);
  void (*project)(const projection_block& block) noexcept;
  size_t (*distance_scratch)(const distance_block& block);
  void (*distance_ratios)(const distance_block& block) noexcept;
  // What this machine can do, for `make bench`.
  fma_peak_kernel fma_peak_float32, fma_peak_float64;
  /// Reads `bytes` bytes (a multiple of 1024, 64-byte aligned) and returns a sum of what it read.
  double (*read_memory)(const void* data, size_t bytes) noexcept;
};

/// Arrays of bfloat16 whose products are of bfloat16, too, and their sums float32.
struct bfloat16_unit {
  attend_kernels attend;  ///< normalizers that softmax_unit has
  gradient_kernels gradient;
};

/// The kernels for one compute type (float or double).
struct typed_kernels {
  const attend_kernels& softmax;
  const attend_kernels& sparse;
  const curve_kernels& curve;
  const solve_kernels& solve;
  const gradient_kernels& gradient;
  const linear_kernels& linear;
  const linear_gradient_kernels& linear_gradient;
  const product_kernels& product;
  const fill_kernel& fill;
  const fma_peak_kernel& fma_peak;
};

/// All kernels of a level: its units joined.
struct level_kernels {
  const char* name;
  typed_kernels float32;
  typed_kernels float64;
  const random_unit& random;
  const bfloat16_unit* bfloat16;  ///< null: bfloat16 is storage, and the arithmetic is float32
};

/// f(level) for each level of this architecture, from the one that every machine has to the best.
/// g(level): levels that are avx512 with a bfloat16_unit of their own.
#if defined(__x86_64__) || defined(_M_X64)
#define ATTNSCALE_FOR_LEVELS(f) f(baseline) f(avx2) f(avx512)
#define ATTNSCALE_FOR_BFLOAT16_LEVELS(g) g(avx512_bf16) g(amx_bf16)
#elif defined(__aarch64__)
#define ATTNSCALE_FOR_LEVELS(f) f(neon)
#define ATTNSCALE_FOR_BFLOAT16_LEVELS(g)
#elif defined(__wasm__)
#define ATTNSCALE_FOR_LEVELS(f) f(wasm)
#define ATTNSCALE_FOR_BFLOAT16_LEVELS(g)
#else
#define ATTNSCALE_FOR_LEVELS(f) f(baseline)
#define ATTNSCALE_FOR_BFLOAT16_LEVELS(g)
#endif

/// Each unit is compiled once a level, into the namespace of the level.
#define ATTNSCALE_DECLARE_UNITS(level)               \
  namespace level {                                  \
  extern const softmax_unit softmax;                 \
  extern const sparse_unit sparse;                   \
  extern const scales_unit scales;                   \
  extern const gradient_unit gradient;               \
  extern const linear_unit linear;                   \
  extern const linear_gradient_unit linear_gradient; \
  extern const random_unit random;                   \
  }

ATTNSCALE_FOR_LEVELS(ATTNSCALE_DECLARE_UNITS)

#undef ATTNSCALE_DECLARE_UNITS

#define ATTNSCALE_DECLARE_BFLOAT16(level) \
  namespace level {                       \
  extern const bfloat16_unit bfloat16;    \
  }

ATTNSCALE_FOR_BFLOAT16_LEVELS(ATTNSCALE_DECLARE_BFLOAT16)

#undef ATTNSCALE_DECLARE_BFLOAT16

/// The kernels of the level in use (see simd_level.hpp).
const level_kernels& active_kernels();

}  // namespace attnscale::detail
