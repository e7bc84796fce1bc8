// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <emmintrin.h>

#include "kernels/simd/float16.hpp"
#include "kernels/simd/simd.hpp"

namespace {

/// Vectors of scores per product in registers: 6 x 2 accumulators of 16 registers.
constexpr int panel_vectors = 2;

/// SSE2 has no fused multiply-add: two roundings.
ATTNSCALE_INLINE vec<float> fma(vec<float> a, vec<float> b, vec<float> c) {
  return _mm_add_ps(_mm_mul_ps(a, b), c);
}
ATTNSCALE_INLINE vec<double> fma(vec<double> a, vec<double> b, vec<double> c) {
  return _mm_add_pd(_mm_mul_pd(a, b), c);
}

/// max and min that return b if either is NaN.
ATTNSCALE_INLINE vec<float> max_or(vec<float> a, vec<float> b) { return _mm_max_ps(a, b); }
ATTNSCALE_INLINE vec<double> max_or(vec<double> a, vec<double> b) { return _mm_max_pd(a, b); }
ATTNSCALE_INLINE vec<float> min_or(vec<float> a, vec<float> b) { return _mm_min_ps(a, b); }
ATTNSCALE_INLINE vec<double> min_or(vec<double> a, vec<double> b) { return _mm_min_pd(a, b); }

/// See avx512.hpp.
ATTNSCALE_INLINE vec<float> reciprocal(vec<float> a) { return broadcast(1.0f) / a; }
ATTNSCALE_INLINE vec<double> reciprocal(vec<double> a) { return broadcast(1.0) / a; }

/// Bits of the lanes where a is above b, or either is NaN.
ATTNSCALE_INLINE unsigned not_below(vec<float> a, vec<float> b) {
  return static_cast<unsigned>(_mm_movemask_ps(_mm_cmpnle_ps(a, b)));
}
ATTNSCALE_INLINE unsigned not_below(vec<double> a, vec<double> b) {
  return static_cast<unsigned>(_mm_movemask_pd(_mm_cmpnle_pd(a, b)));
}

/// See avx512.hpp.
ATTNSCALE_INLINE vec<float> exponent_from_mantissa(vec<float> r) {
  return _mm_castsi128_ps(_mm_slli_epi32(_mm_castps_si128(r), 23));
}
ATTNSCALE_INLINE vec<double> exponent_from_mantissa(vec<double> r) {
  return _mm_castsi128_pd(_mm_slli_epi64(_mm_castpd_si128(r), 52));
}

/// Interleaves the low (high) halves of a and b: a0 b0 a1 b1 ...
ATTNSCALE_INLINE vec<float> interleave_low(vec<float> a, vec<float> b) {
  return _mm_unpacklo_ps(a, b);
}
ATTNSCALE_INLINE vec<float> interleave_high(vec<float> a, vec<float> b) {
  return _mm_unpackhi_ps(a, b);
}
ATTNSCALE_INLINE vec<double> interleave_low(vec<double> a, vec<double> b) {
  return _mm_unpacklo_pd(a, b);
}
ATTNSCALE_INLINE vec<double> interleave_high(vec<double> a, vec<double> b) {
  return _mm_unpackhi_pd(a, b);
}

/// out[i] += a[i], widened to double.
ATTNSCALE_INLINE void add_to_double(double* out, vec<double> a) {
  _mm_storeu_pd(out, _mm_add_pd(_mm_loadu_pd(out), a));
}
ATTNSCALE_INLINE void add_to_double(double* out, vec<float> a) {
  const __m128 x = a;
  const __m128d low = _mm_cvtps_pd(x);
  const __m128d high = _mm_cvtps_pd(_mm_movehl_ps(x, x));
  _mm_storeu_pd(out, _mm_add_pd(_mm_loadu_pd(out), low));
  _mm_storeu_pd(out + 2, _mm_add_pd(_mm_loadu_pd(out + 2), high));
}

/// See avx512.hpp.
ATTNSCALE_INLINE vec<double> load_widened(const double* p) { return load(p); }
ATTNSCALE_INLINE vec<double> load_widened(const float* p) {
  return _mm_cvtps_pd(_mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
ATTNSCALE_INLINE void store_narrowed(double* p, vec<double> a) { store(p, a); }
ATTNSCALE_INLINE void store_narrowed(float* p, vec<double> a) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_castps_si128(_mm_cvtpd_ps(a)));
}

/// One vector of float from 16-bit storage.
ATTNSCALE_INLINE vec<float> load_float16(const uint16_t* p) {
  return _mm_setr_ps(float_from_float16(p[0]), float_from_float16(p[1]), float_from_float16(p[2]),
                     float_from_float16(p[3]));
}
ATTNSCALE_INLINE vec<float> load_bfloat16(const uint16_t* p) {
  const __m128i bits = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), bits));
}

/// See avx512.hpp.
ATTNSCALE_INLINE vec<uint32_t> as_bits(vec<float> a) { return _mm_castps_si128(a); }
ATTNSCALE_INLINE vec<uint64_t> as_bits(vec<double> a) { return _mm_castpd_si128(a); }
ATTNSCALE_INLINE vec<float> from_bits(vec<uint32_t> a) { return _mm_castsi128_ps(a); }
ATTNSCALE_INLINE vec<double> from_bits(vec<uint64_t> a) { return _mm_castsi128_pd(a); }

ATTNSCALE_INLINE vec<float> signed_to_float(vec<uint32_t> a) { return _mm_cvtepi32_ps(a); }
/// See avx2.hpp.
ATTNSCALE_INLINE vec<double> signed_to_float(vec<uint64_t> a) {
  const __m128i halves = _mm_set1_epi64x(0xFFFFFFFF);
  const __m128i top = _mm_srli_epi64(a, 32), bottom = _mm_and_si128(a, halves);
  const __m128i high = _mm_xor_si128(top, _mm_set1_epi64x(0x4530000080000000));
  const __m128i low = _mm_or_si128(bottom, _mm_set1_epi64x(0x4330000000000000));
  const __m128d magic = _mm_set1_pd(0x1.00000801p+84);
  return _mm_add_pd(_mm_sub_pd(_mm_castsi128_pd(high), magic), _mm_castsi128_pd(low));
}

ATTNSCALE_INLINE vec<float> pick(vec<uint32_t> which, vec<float> a, vec<float> b) {
  const __m128 mask = _mm_castsi128_ps(_mm_srai_epi32(which, 31));
  return _mm_or_ps(_mm_and_ps(mask, b), _mm_andnot_ps(mask, a));
}
ATTNSCALE_INLINE vec<double> pick(vec<uint64_t> which, vec<double> a, vec<double> b) {
  const __m128i high = _mm_shuffle_epi32(which, _MM_SHUFFLE(3, 3, 1, 1));
  const __m128d mask = _mm_castsi128_pd(_mm_srai_epi32(high, 31));
  return _mm_or_pd(_mm_and_pd(mask, b), _mm_andnot_pd(mask, a));
}

ATTNSCALE_INLINE vec<uint64_t> multiply_low_halves(vec<uint64_t> a, vec<uint64_t> b) {
  return _mm_mul_epu32(a, b);
}
ATTNSCALE_INLINE vec<uint32_t> join_low_halves(vec<uint64_t> even, vec<uint64_t> odd) {
  const __m128i low = _mm_and_si128(even, _mm_set1_epi64x(0xFFFFFFFF));
  return _mm_or_si128(low, _mm_slli_epi64(odd, 32));
}
ATTNSCALE_INLINE vec<uint64_t> load_widened(const uint32_t* p) {
  return _mm_unpacklo_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)),
                            _mm_setzero_si128());
}
ATTNSCALE_INLINE vec<uint64_t> xor_three(vec<uint64_t> a, vec<uint64_t> b, vec<uint64_t> c) {
  return _mm_xor_si128(_mm_xor_si128(a, b), c);
}

}  // namespace
