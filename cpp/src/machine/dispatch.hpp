// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "attnscale/types.hpp"
#include "kernels/level.hpp"

namespace attnscale {

struct attention_problem;
struct gradient_problem;

}  // namespace attnscale

namespace attnscale::detail {

// Levels left out of the build (ATTNSCALE_SIMD_LEVELS of CMake) are declared, but neither defined
// nor used.
#if defined(ATTNSCALE_WITHOUT_BASELINE)
#define ATTNSCALE_IF_BASELINE(...)
#else
#define ATTNSCALE_IF_BASELINE(...) __VA_ARGS__
#endif
#if defined(ATTNSCALE_WITHOUT_AVX2)
#define ATTNSCALE_IF_AVX2(...)
#else
#define ATTNSCALE_IF_AVX2(...) __VA_ARGS__
#endif
#if defined(ATTNSCALE_WITHOUT_AVX512)
#define ATTNSCALE_IF_AVX512(...)
#else
#define ATTNSCALE_IF_AVX512(...) __VA_ARGS__
#endif
#if defined(ATTNSCALE_WITHOUT_AVX512_BF16)
#define ATTNSCALE_IF_AVX512_BF16(...)
#else
#define ATTNSCALE_IF_AVX512_BF16(...) __VA_ARGS__
#endif
#if defined(ATTNSCALE_WITHOUT_AMX_BF16)
#define ATTNSCALE_IF_AMX_BF16(...)
#else
#define ATTNSCALE_IF_AMX_BF16(...) __VA_ARGS__
#endif

/// ATTNSCALE_FOR_LEVELS and ATTNSCALE_FOR_BFLOAT16_LEVELS without the levels left out of this
/// build.
#if defined(__x86_64__) || defined(_M_X64)
#define ATTNSCALE_FOR_BUILT_LEVELS(f) \
  ATTNSCALE_IF_BASELINE(f(baseline)) ATTNSCALE_IF_AVX2(f(avx2)) ATTNSCALE_IF_AVX512(f(avx512))
#define ATTNSCALE_FOR_BUILT_BFLOAT16_LEVELS(g) \
  ATTNSCALE_IF_AVX512_BF16(g(avx512_bf16)) ATTNSCALE_IF_AMX_BF16(g(amx_bf16))
#else
#define ATTNSCALE_FOR_BUILT_LEVELS(f) ATTNSCALE_FOR_LEVELS(f)
#define ATTNSCALE_FOR_BUILT_BFLOAT16_LEVELS(g)
#endif

/// g(level, other): a level that is `other` plus its own bfloat16_unit, which computes the
/// instructions of avx512_bf16 or amx_bf16 with those of `other`. In builds for tests only
/// (ATTNSCALE_EMULATE_BFLOAT16), and never used unless chosen by name.
#if defined(__x86_64__)
#define ATTNSCALE_FOR_EMULATED_LEVELS(g) g(emulated_avx512_bf16, avx2) g(emulated_amx_bf16, avx2)
#elif defined(__aarch64__)
#define ATTNSCALE_FOR_EMULATED_LEVELS(g) g(emulated_avx512_bf16, neon) g(emulated_amx_bf16, neon)
#else
#define ATTNSCALE_FOR_EMULATED_LEVELS(g)
#endif

#define ATTNSCALE_DECLARE_KERNELS(level, ...) extern const level_kernels level##_kernels;
ATTNSCALE_FOR_LEVELS(ATTNSCALE_DECLARE_KERNELS)
ATTNSCALE_FOR_BFLOAT16_LEVELS(ATTNSCALE_DECLARE_KERNELS)
ATTNSCALE_FOR_EMULATED_LEVELS(ATTNSCALE_DECLARE_KERNELS)
#undef ATTNSCALE_DECLARE_KERNELS

/// The kernels of the level in use for one compute type.
const typed_kernels& active_kernels(element_type compute);

/// Kernels for a problem: its types and its rule.
const attend_kernels& attend_kernels_for(const attention_problem& problem);
const gradient_kernels& gradient_kernels_for(const gradient_problem& problem);

/// Kernels for attention under `rule` that convert 16-bit storage to float.
const attend_kernels& attend_kernels_for(element_type compute, normalizer rule);

/// Kernels of the level called `requested`; null or empty: the best level of this CPU. An unknown
/// or unsupported name throws std::runtime_error, which lists the choices.
const level_kernels& kernels_for(const char* requested);

}  // namespace attnscale::detail
