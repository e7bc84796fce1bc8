// SPDX-License-Identifier: BSD-3-Clause
//
// The only header that names xsimd or an intrinsic. The compiler flags set the level
// (cmake/kernels.cmake). xsimd 8.1 (Debian 12) has no AVX-512 FMA; its mask queries were renamed in
// 9.0, bitwise_cast changed in 11.0 and the NaN rule of max in 14.0. The kernels use intrinsics for
// these, defined here once.
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__wasm_simd128__) && !defined(__EMSCRIPTEN__)
// xsimd checks for Emscripten where it needs only the instructions.
#define __EMSCRIPTEN__
#include <xsimd/config/xsimd_config.hpp>
#undef __EMSCRIPTEN__
#endif
#include <xsimd/xsimd.hpp>

#if defined(__GNUC__) || defined(__clang__)
#define ATTNSCALE_INLINE inline __attribute__((always_inline))
#define ATTNSCALE_INLINE_LAMBDA __attribute__((always_inline))
#else
#define ATTNSCALE_INLINE inline
#define ATTNSCALE_INLINE_LAMBDA
#endif

// clang++ 14 writes the second name.
#if defined(__AMX_BF16__) || defined(__AMXBF16__)
#define ATTNSCALE_HAS_AMX
#endif

#if defined(__AVX512F__)
#if defined(ATTNSCALE_HAS_AMX)
#define ATTNSCALE_LEVEL amx_bf16
#elif defined(__AVX512BF16__)
#define ATTNSCALE_LEVEL avx512_bf16
#else
#define ATTNSCALE_LEVEL avx512
#endif
#define ATTNSCALE_ARCH xsimd::avx512bw
#elif defined(__AVX2__)
#define ATTNSCALE_LEVEL avx2
#define ATTNSCALE_ARCH xsimd::fma3<xsimd::avx2>
#elif defined(__SSE2__)
#define ATTNSCALE_LEVEL baseline
#define ATTNSCALE_ARCH xsimd::sse2
#elif defined(__aarch64__)
#define ATTNSCALE_LEVEL neon
#define ATTNSCALE_ARCH xsimd::neon64
#elif defined(__wasm_simd128__)
#define ATTNSCALE_LEVEL wasm
#define ATTNSCALE_ARCH xsimd::wasm
#else
#error "attnscale has no SIMD level for this architecture"
#endif

namespace {

using arch = ATTNSCALE_ARCH;

template <class T>
using vec = xsimd::batch<T, arch>;
template <class T>
using vec_mask = xsimd::batch_bool<T, arch>;

/// Lanes of a vector.
template <class T>
constexpr int width = static_cast<int>(vec<T>::size);

template <class T>
struct limits;
template <>
struct limits<float> {
  static constexpr float infinity = __builtin_inff();
  static constexpr float lowest = -__FLT_MAX__;
  static constexpr float least_normal = __FLT_MIN__;
};
template <>
struct limits<double> {
  static constexpr double infinity = __builtin_inf();
  static constexpr double lowest = -__DBL_MAX__;
  static constexpr double least_normal = __DBL_MIN__;
};

template <class T>
ATTNSCALE_INLINE vec<T> load(const T* p) {
  return vec<T>::load_unaligned(p);
}
template <class T>
ATTNSCALE_INLINE void store(T* p, const vec<T>& v) {
  v.store_unaligned(p);
}
template <class T>
ATTNSCALE_INLINE vec<T> broadcast(T x) {
  return vec<T>(x);
}
template <class T>
ATTNSCALE_INLINE bool any(const vec_mask<T>& m) {
  return xsimd::any(m);
}
/// Lanes that are not equal, with NaN counted as unequal: xsimd's != excludes NaN on AVX only.
template <class V>
ATTNSCALE_INLINE auto differ(const V& a, const V& b) {
  return ~(a == b);
}

}  // namespace

#if defined(__AVX512F__)
#include "kernels/simd/avx512.hpp"
#elif defined(__AVX2__)
#include "kernels/simd/avx2.hpp"
#elif defined(__SSE2__)
#include "kernels/simd/sse2.hpp"
#elif defined(__wasm_simd128__)
#include "kernels/simd/wasm.hpp"
#else
#include "kernels/simd/neon.hpp"
#endif

namespace {

/// Clears the upper halves of all registers when destroyed.
struct clean_exit {
  ~clean_exit() {
#if defined(__AVX2__)
    _mm256_zeroupper();
#endif
  }
};

template <auto function>
struct entered;
template <class R, class... Arguments, R (*function)(Arguments...) noexcept>
struct entered<function> {
  static R call(Arguments... arguments) noexcept {
    [[maybe_unused]] const clean_exit at_end;
    return function(arguments...);
  }
};

/// Entry point of a kernel for the rest of the core, which is compiled without AVX: if a kernel
/// leaves upper halves of registers in use, the vector instructions of such code stall. lse of a
/// row took 220 ns instead of 20 (Sapphire Rapids). Compilers clear them per function; GCC 12 does
/// not after a call that takes vectors.
template <auto function>
constexpr auto entry = &entered<function>::call;

}  // namespace
