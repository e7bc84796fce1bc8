// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <immintrin.h>

#include "kernels/simd/simd.hpp"

namespace {

/// Vectors of scores per product in registers: 6 x 2 accumulators of 16 registers.
constexpr int panel_vectors = 2;

ATTNSCALE_INLINE vec<float> fma(vec<float> a, vec<float> b, vec<float> c) {
  return _mm256_fmadd_ps(a, b, c);
}
ATTNSCALE_INLINE vec<double> fma(vec<double> a, vec<double> b, vec<double> c) {
  return _mm256_fmadd_pd(a, b, c);
}

/// max and min that return b if either is NaN.
ATTNSCALE_INLINE vec<float> max_or(vec<float> a, vec<float> b) { return _mm256_max_ps(a, b); }
ATTNSCALE_INLINE vec<double> max_or(vec<double> a, vec<double> b) { return _mm256_max_pd(a, b); }
ATTNSCALE_INLINE vec<float> min_or(vec<float> a, vec<float> b) { return _mm256_min_ps(a, b); }
ATTNSCALE_INLINE vec<double> min_or(vec<double> a, vec<double> b) { return _mm256_min_pd(a, b); }

/// See avx512.hpp.
ATTNSCALE_INLINE vec<float> reciprocal(vec<float> a) { return broadcast(1.0f) / a; }
ATTNSCALE_INLINE vec<double> reciprocal(vec<double> a) { return broadcast(1.0) / a; }

/// Bits of the lanes where a is above b, or either is NaN.
ATTNSCALE_INLINE unsigned not_below(vec<float> a, vec<float> b) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NLE_UQ)));
}
ATTNSCALE_INLINE unsigned not_below(vec<double> a, vec<double> b) {
  return static_cast<unsigned>(_mm256_movemask_pd(_mm256_cmp_pd(a, b, _CMP_NLE_UQ)));
}

/// See avx512.hpp.
ATTNSCALE_INLINE vec<float> exponent_from_mantissa(vec<float> r) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(r), 23));
}
ATTNSCALE_INLINE vec<double> exponent_from_mantissa(vec<double> r) {
  return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(r), 52));
}

/// Interleaves the low (high) halves of a and b: a0 b0 a1 b1 ...
ATTNSCALE_INLINE vec<float> interleave_low(vec<float> a, vec<float> b) {
  return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20);
}
ATTNSCALE_INLINE vec<float> interleave_high(vec<float> a, vec<float> b) {
  return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31);
}
ATTNSCALE_INLINE vec<double> interleave_low(vec<double> a, vec<double> b) {
  return _mm256_permute2f128_pd(_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b), 0x20);
}
ATTNSCALE_INLINE vec<double> interleave_high(vec<double> a, vec<double> b) {
  return _mm256_permute2f128_pd(_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b), 0x31);
}

/// out[i] += a[i], widened to double.
ATTNSCALE_INLINE void add_to_double(double* out, vec<double> a) {
  _mm256_storeu_pd(out, _mm256_add_pd(_mm256_loadu_pd(out), a));
}
ATTNSCALE_INLINE void add_to_double(double* out, vec<float> a) {
  const __m256 x = a;
  const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
  const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
  _mm256_storeu_pd(out, _mm256_add_pd(_mm256_loadu_pd(out), low));
  _mm256_storeu_pd(out + 4, _mm256_add_pd(_mm256_loadu_pd(out + 4), high));
}

/// See avx512.hpp.
ATTNSCALE_INLINE vec<double> load_widened(const double* p) { return load(p); }
ATTNSCALE_INLINE vec<double> load_widened(const float* p) {
  return _mm256_cvtps_pd(_mm_loadu_ps(p));
}
ATTNSCALE_INLINE void store_narrowed(double* p, vec<double> a) { store(p, a); }
ATTNSCALE_INLINE void store_narrowed(float* p, vec<double> a) {
  _mm_storeu_ps(p, _mm256_cvtpd_ps(a));
}

/// One vector of float from 16-bit storage.
ATTNSCALE_INLINE vec<float> load_float16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
ATTNSCALE_INLINE vec<float> load_bfloat16(const uint16_t* p) {
  const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}

/// See avx512.hpp.
ATTNSCALE_INLINE vec<uint32_t> as_bits(vec<float> a) { return _mm256_castps_si256(a); }
ATTNSCALE_INLINE vec<uint64_t> as_bits(vec<double> a) { return _mm256_castpd_si256(a); }
ATTNSCALE_INLINE vec<float> from_bits(vec<uint32_t> a) { return _mm256_castsi256_ps(a); }
ATTNSCALE_INLINE vec<double> from_bits(vec<uint64_t> a) { return _mm256_castsi256_pd(a); }

ATTNSCALE_INLINE vec<float> signed_to_float(vec<uint32_t> a) { return _mm256_cvtepi32_ps(a); }
/// High and low halves become 2^84 + 2^63 + high and 2^52 + low; only the last sum rounds.
ATTNSCALE_INLINE vec<double> signed_to_float(vec<uint64_t> a) {
  const __m256i top = _mm256_srli_epi64(a, 32);
  const __m256i high = _mm256_xor_si256(top, _mm256_set1_epi64x(0x4530000080000000));
  const __m256i low = _mm256_blend_epi16(a, _mm256_set1_epi64x(0x4330000000000000), 0xCC);
  const __m256d magic = _mm256_set1_pd(0x1.00000801p+84);  // 2^84 + 2^63 + 2^52
  return _mm256_add_pd(_mm256_sub_pd(_mm256_castsi256_pd(high), magic), _mm256_castsi256_pd(low));
}

ATTNSCALE_INLINE vec<float> pick(vec<uint32_t> which, vec<float> a, vec<float> b) {
  return _mm256_blendv_ps(a, b, _mm256_castsi256_ps(which));
}
ATTNSCALE_INLINE vec<double> pick(vec<uint64_t> which, vec<double> a, vec<double> b) {
  return _mm256_blendv_pd(a, b, _mm256_castsi256_pd(which));
}

ATTNSCALE_INLINE vec<uint64_t> multiply_low_halves(vec<uint64_t> a, vec<uint64_t> b) {
  return _mm256_mul_epu32(a, b);
}
ATTNSCALE_INLINE vec<uint32_t> join_low_halves(vec<uint64_t> even, vec<uint64_t> odd) {
  return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}
ATTNSCALE_INLINE vec<uint64_t> load_widened(const uint32_t* p) {
  return _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
/// c comes last: g++ would start with it, and a chain of Philox rounds depends on it.
ATTNSCALE_INLINE vec<uint64_t> xor_three(vec<uint64_t> a, vec<uint64_t> b, vec<uint64_t> c) {
  __m256i both = _mm256_xor_si256(a, b);
  asm("" : "+x"(both));
  return _mm256_xor_si256(both, c);
}

}  // namespace
