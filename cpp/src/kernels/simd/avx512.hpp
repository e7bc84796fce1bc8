// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <immintrin.h>

#include "kernels/simd/simd.hpp"

namespace {

/// Vectors of scores per product in registers: 6 x 4 accumulators of 32 registers.
constexpr int panel_vectors = 4;

ATTNSCALE_INLINE vec<float> fma(vec<float> a, vec<float> b, vec<float> c) {
  return _mm512_fmadd_ps(a, b, c);
}
ATTNSCALE_INLINE vec<double> fma(vec<double> a, vec<double> b, vec<double> c) {
  return _mm512_fmadd_pd(a, b, c);
}

/// max and min that return b if either is NaN.
ATTNSCALE_INLINE vec<float> max_or(vec<float> a, vec<float> b) { return _mm512_max_ps(a, b); }
ATTNSCALE_INLINE vec<double> max_or(vec<double> a, vec<double> b) { return _mm512_max_pd(a, b); }
ATTNSCALE_INLINE vec<float> min_or(vec<float> a, vec<float> b) { return _mm512_min_ps(a, b); }
ATTNSCALE_INLINE vec<double> min_or(vec<double> a, vec<double> b) { return _mm512_min_pd(a, b); }

/// 1 / a for a from 1 to 2^120, to one ulp: a division takes as long as half of exp2.
ATTNSCALE_INLINE vec<float> reciprocal(vec<float> a) {
  const __m512 r = _mm512_rcp14_ps(a);
  return _mm512_fmadd_ps(r, _mm512_fnmadd_ps(a, r, _mm512_set1_ps(1)), r);
}
ATTNSCALE_INLINE vec<double> reciprocal(vec<double> a) { return broadcast(1.0) / a; }

/// Bits of the lanes where a is above b, or either is NaN.
ATTNSCALE_INLINE unsigned not_below(vec<float> a, vec<float> b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ);
}
ATTNSCALE_INLINE unsigned not_below(vec<double> a, vec<double> b) {
  return _mm512_cmp_pd_mask(a, b, _CMP_NLE_UQ);
}

/// 2^n from r = 1.5 * 2^23 + 127 + n (float), 1.5 * 2^52 + 1023 + n (double): the low bits of the
/// mantissa become the exponent.
ATTNSCALE_INLINE vec<float> exponent_from_mantissa(vec<float> r) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(r), 23));
}
ATTNSCALE_INLINE vec<double> exponent_from_mantissa(vec<double> r) {
  return _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(r), 52));
}

/// Interleaves the low (high) halves of a and b: a0 b0 a1 b1 ...
ATTNSCALE_INLINE vec<float> interleave_low(vec<float> a, vec<float> b) {
  const __m512i index = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  return _mm512_permutex2var_ps(a, index, b);
}
ATTNSCALE_INLINE vec<float> interleave_high(vec<float> a, vec<float> b) {
  const __m512i index =
      _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  return _mm512_permutex2var_ps(a, index, b);
}
ATTNSCALE_INLINE vec<double> interleave_low(vec<double> a, vec<double> b) {
  return _mm512_permutex2var_pd(a, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), b);
}
ATTNSCALE_INLINE vec<double> interleave_high(vec<double> a, vec<double> b) {
  return _mm512_permutex2var_pd(a, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), b);
}

/// out[i] += a[i], widened to double.
ATTNSCALE_INLINE void add_to_double(double* out, vec<double> a) {
  _mm512_storeu_pd(out, _mm512_add_pd(_mm512_loadu_pd(out), a));
}
ATTNSCALE_INLINE void add_to_double(double* out, vec<float> a) {
  const __m512 x = a;
  const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
  const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
  _mm512_storeu_pd(out, _mm512_add_pd(_mm512_loadu_pd(out), low));
  _mm512_storeu_pd(out + 8, _mm512_add_pd(_mm512_loadu_pd(out + 8), high));
}

/// One vector of double from as many elements, and back with one rounding.
ATTNSCALE_INLINE vec<double> load_widened(const double* p) { return load(p); }
ATTNSCALE_INLINE vec<double> load_widened(const float* p) {
  return _mm512_cvtps_pd(_mm256_loadu_ps(p));
}
ATTNSCALE_INLINE void store_narrowed(double* p, vec<double> a) { store(p, a); }
ATTNSCALE_INLINE void store_narrowed(float* p, vec<double> a) {
  _mm256_storeu_ps(p, _mm512_cvtpd_ps(a));
}

/// One vector of float from 16-bit storage.
ATTNSCALE_INLINE vec<float> load_float16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
ATTNSCALE_INLINE vec<float> load_bfloat16(const uint16_t* p) {
  const __m512i bits =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

/// Bits of a float as an unsigned integer, and back.
ATTNSCALE_INLINE vec<uint32_t> as_bits(vec<float> a) { return _mm512_castps_si512(a); }
ATTNSCALE_INLINE vec<uint64_t> as_bits(vec<double> a) { return _mm512_castpd_si512(a); }
ATTNSCALE_INLINE vec<float> from_bits(vec<uint32_t> a) { return _mm512_castsi512_ps(a); }
ATTNSCALE_INLINE vec<double> from_bits(vec<uint64_t> a) { return _mm512_castsi512_pd(a); }

/// The bits as a signed integer, rounded once to a float.
ATTNSCALE_INLINE vec<float> signed_to_float(vec<uint32_t> a) { return _mm512_cvtepi32_ps(a); }
ATTNSCALE_INLINE vec<double> signed_to_float(vec<uint64_t> a) { return _mm512_cvtepi64_pd(a); }

/// Selects a where the top bit of `which` is 0, else b.
ATTNSCALE_INLINE vec<float> pick(vec<uint32_t> which, vec<float> a, vec<float> b) {
  return _mm512_mask_blend_ps(_mm512_movepi32_mask(which), a, b);
}
ATTNSCALE_INLINE vec<double> pick(vec<uint64_t> which, vec<double> a, vec<double> b) {
  return _mm512_mask_blend_pd(_mm512_movepi64_mask(which), a, b);
}

/// Product of the low 32 bits of each lane.
ATTNSCALE_INLINE vec<uint64_t> multiply_low_halves(vec<uint64_t> a, vec<uint64_t> b) {
  return _mm512_mul_epu32(a, b);
}
/// Joins the low 32 bits of each lane: even[0] odd[0] even[1] odd[1] ...
ATTNSCALE_INLINE vec<uint32_t> join_low_halves(vec<uint64_t> even, vec<uint64_t> odd) {
  return _mm512_mask_shuffle_epi32(even, 0xAAAA, odd, _MM_PERM_CCAA);
}
/// One vector of 64-bit lanes from 32-bit storage.
ATTNSCALE_INLINE vec<uint64_t> load_widened(const uint32_t* p) {
  return _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
/// c is the new operand in a round of Philox: the instruction overwrites its first operand, and any
/// other one would be copied first (measured on Zen 4: a fifth of the time of a normal number).
ATTNSCALE_INLINE vec<uint64_t> xor_three(vec<uint64_t> a, vec<uint64_t> b, vec<uint64_t> c) {
  return _mm512_ternarylogic_epi64(c, a, b, 0x96);
}

}  // namespace
