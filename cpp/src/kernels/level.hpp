// SPDX-License-Identifier: BSD-3-Clause
//
// Interface of the kernels to the rest of the core: plain structs and function pointers, no
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
struct ladder_block;
struct linear_block;
struct linear_form;
struct linear_gradient_block;
struct product_block;
struct received_ladder_block;
struct solve_block;
struct top_keys_block;
struct simulated_row_block;
struct sample_block;
struct projection_block;
struct distance_block;

/// Attention for a block of queries.
struct attend_kernels {
  int block_rows;                                ///< maximum number of queries per call of run
  size_t (*scratch)(const attend_block& block);  ///< bytes of 64-byte aligned scratch
  void (*run)(const attend_block& block) noexcept;
};

struct curve_kernels {
  int block_rows;
  size_t (*scratch)(const curve_block& block);
  void (*run)(const curve_block& block) noexcept;
};

struct ladder_kernels {
  int block_rows;
  size_t (*scratch)(const ladder_block& block);
  void (*run)(const ladder_block& block) noexcept;
  size_t (*received_scratch)(const received_ladder_block& block);
  void (*run_received)(const received_ladder_block& block) noexcept;
};

struct solve_kernels {
  int lanes;       ///< queries per vector
  int panel_rows;  ///< maximum number of queries per call of gather or evaluate
  size_t (*scratch)(const solve_block& block);
  void (*gather)(const solve_block& block) noexcept;
  void (*evaluate)(const solve_block& block) noexcept;
};

/// The keys with the largest scores, in double whatever the type of the arrays.
struct top_keys_kernels {
  int block_rows;
  int64_t (*capacity)(int64_t k, int64_t keys);  ///< candidates that a row needs room for
  size_t (*scratch)(const top_keys_block& block);
  void (*run)(const top_keys_block& block) noexcept;
};

struct gradient_kernels {
  int block_rows;
  size_t (*scratch)(const gradient_block& block);
  /// Fills `given` from row `first` on with the parameters of the rows of a finished forward pass,
  /// for normalizers with weights of single scores that have no lse.
  void (*set_row_parameters)(const attend_block& forward, int first, gradient_rows& given) noexcept;
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

/// Independent multiply-adds in registers for `rounds` rounds: returns the number of floating point
/// operations (2 per element) and writes a value that depends on all of them.
using fma_peak_kernel = double (*)(int64_t rounds, double* sink) noexcept;
using fill_kernel = void (*)(const fill_block& block) noexcept;

// The contents of each file of units/, for both compute types.

struct softmax_unit {
  attend_kernels float32, float64;
};

/// Normalizers that need all scores of a row at once: entmax and top-k.
struct sparse_unit {
  attend_kernels float32, float64;
  top_keys_kernels top_keys;
};

struct scales_unit {
  curve_kernels curve_float32, curve_float64;
  ladder_kernels ladder_float32, ladder_float64;
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
  int panel_columns;  ///< columns, or points, per panel of project and distance_ratios
  size_t (*project_scratch)(const projection_block& block);
  void (*project)(const projection_block& block) noexcept;
  size_t (*distance_scratch)(const distance_block& block);
  void (*distance_ratios)(const distance_block& block) noexcept;
  // Peak rates of this machine, for `make bench`.
  fma_peak_kernel fma_peak_float32, fma_peak_float64;
  /// Reads `bytes` bytes (a multiple of 1024, 64-byte aligned) and returns a sum of them.
  double (*read_memory)(const void* data, size_t bytes) noexcept;
};

/// bfloat16 arrays with bfloat16 products and float32 sums.
struct bfloat16_unit {
  attend_kernels attend;  ///< the normalizers of softmax_unit
  gradient_kernels gradient;
};

/// Kernels for one compute type (float or double).
struct typed_kernels {
  const attend_kernels& softmax;
  const attend_kernels& sparse;
  const curve_kernels& curve;
  const ladder_kernels& ladder;
  const solve_kernels& solve;
  const gradient_kernels& gradient;
  const linear_kernels& linear;
  const linear_gradient_kernels& linear_gradient;
  const product_kernels& product;
  const fill_kernel& fill;
  const fma_peak_kernel& fma_peak;
};

/// All kernels of a level, from its units.
struct level_kernels {
  const char* name;
  typed_kernels float32;
  typed_kernels float64;
  const top_keys_kernels& top_keys;
  const random_unit& random;
  const bfloat16_unit* bfloat16;  ///< null: bfloat16 is only storage, with float32 arithmetic
};

/// f(level) for each level of this architecture, from the baseline to the best. g(level): levels
/// that are avx512 with a bfloat16_unit of their own.
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

/// Units, each compiled once per level, into the namespace of the level.
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

/// Kernels of the level in use (see simd_level.hpp).
const level_kernels& active_kernels();

}  // namespace attnscale::detail
