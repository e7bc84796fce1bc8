// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/simd.hpp"

namespace {

/// sum + low(a) low(b) + high(a) high(b) of each lane.
ATTNSCALE_INLINE vec<float> add_products(vec<uint32_t> a, vec<uint32_t> b, vec<float> sum) {
  const __m512i x = a, y = b;
  return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y);
}

/// Two neighbours in memory, broadcast to every lane.
ATTNSCALE_INLINE vec<uint32_t> broadcast_pair(const uint16_t* p) {
  int bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return _mm512_set1_epi32(bits);
}

/// Two vectors rounded to bfloat16, as the pair of a lane.
ATTNSCALE_INLINE vec<uint32_t> rounded_pair(vec<float> low, vec<float> high) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/// Two vectors rounded to bfloat16, stored one after the other.
ATTNSCALE_INLINE void store_rounded(uint16_t* p, vec<float> first, vec<float> second) {
  _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

/// Pairs low[0] high[0] low[1] high[1] ..., one per lane.
ATTNSCALE_INLINE vec<uint32_t> interleaved_pair(const uint16_t* low, const uint16_t* high) {
  const auto read = [](const uint16_t* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  };
  return _mm512_or_si512(read(low), _mm512_slli_epi32(read(high), 16));
}

/// Whether one of the numbers is NaN or infinite.
ATTNSCALE_INLINE bool any_nonfinite(const uint16_t* p, int64_t count) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  for (int64_t i = 0; i < count; i += 32) {
    const __mmask32 there = count - i < 32 ? (1u << (count - i)) - 1 : ~0u;
    const __m512i bits = _mm512_and_si512(_mm512_maskz_loadu_epi16(there, p + i), exponent);
    if (_mm512_cmpeq_epi16_mask(bits, exponent) != 0) return true;
  }
  return false;
}

}  // namespace
