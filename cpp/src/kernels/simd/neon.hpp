// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <arm_neon.h>

#include "kernels/simd/float16.hpp"
#include "kernels/simd/simd.hpp"

namespace {

/// Vectors of scores per product in registers: 6 x 4 accumulators of 32 registers.
constexpr int panel_vectors = 4;

ATTNSCALE_INLINE vec<float> fma(vec<float> a, vec<float> b, vec<float> c) {
  return vfmaq_f32(c, a, b);
}
ATTNSCALE_INLINE vec<double> fma(vec<double> a, vec<double> b, vec<double> c) {
  return vfmaq_f64(c, a, b);
}

/// max and min that return b if either is NaN: NEON's own return NaN, so select.
ATTNSCALE_INLINE vec<float> max_or(vec<float> a, vec<float> b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
ATTNSCALE_INLINE vec<double> max_or(vec<double> a, vec<double> b) {
  return vbslq_f64(vcgtq_f64(a, b), a, b);
}
ATTNSCALE_INLINE vec<float> min_or(vec<float> a, vec<float> b) {
  return vbslq_f32(vcltq_f32(a, b), a, b);
}
ATTNSCALE_INLINE vec<double> min_or(vec<double> a, vec<double> b) {
  return vbslq_f64(vcltq_f64(a, b), a, b);
}

/// See avx512.hpp.
ATTNSCALE_INLINE vec<float> reciprocal(vec<float> a) { return broadcast(1.0f) / a; }
ATTNSCALE_INLINE vec<double> reciprocal(vec<double> a) { return broadcast(1.0) / a; }

/// Bits of the lanes where a is above b, or either is NaN.
ATTNSCALE_INLINE unsigned not_below(vec<float> a, vec<float> b) {
  const uint32x4_t bits = {1, 2, 4, 8};
  return vaddvq_u32(vbicq_u32(bits, vcleq_f32(a, b)));
}
ATTNSCALE_INLINE unsigned not_below(vec<double> a, vec<double> b) {
  const uint64x2_t bits = {1, 2};
  return static_cast<unsigned>(vaddvq_u64(vbicq_u64(bits, vcleq_f64(a, b))));
}

/// See avx512.hpp.
ATTNSCALE_INLINE vec<float> exponent_from_mantissa(vec<float> r) {
  return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(r), 23));
}
ATTNSCALE_INLINE vec<double> exponent_from_mantissa(vec<double> r) {
  return vreinterpretq_f64_u64(vshlq_n_u64(vreinterpretq_u64_f64(r), 52));
}

/// Interleaves the low (high) halves of a and b: a0 b0 a1 b1 ...
ATTNSCALE_INLINE vec<float> interleave_low(vec<float> a, vec<float> b) { return vzip1q_f32(a, b); }
ATTNSCALE_INLINE vec<float> interleave_high(vec<float> a, vec<float> b) { return vzip2q_f32(a, b); }
ATTNSCALE_INLINE vec<double> interleave_low(vec<double> a, vec<double> b) {
  return vzip1q_f64(a, b);
}
ATTNSCALE_INLINE vec<double> interleave_high(vec<double> a, vec<double> b) {
  return vzip2q_f64(a, b);
}

/// out[i] += a[i], widened to double.
ATTNSCALE_INLINE void add_to_double(double* out, vec<double> a) {
  vst1q_f64(out, vaddq_f64(vld1q_f64(out), a));
}
ATTNSCALE_INLINE void add_to_double(double* out, vec<float> a) {
  const float32x4_t x = a;
  vst1q_f64(out, vaddq_f64(vld1q_f64(out), vcvt_f64_f32(vget_low_f32(x))));
  vst1q_f64(out + 2, vaddq_f64(vld1q_f64(out + 2), vcvt_high_f64_f32(x)));
}

/// See avx512.hpp.
ATTNSCALE_INLINE vec<double> load_widened(const double* p) { return load(p); }
ATTNSCALE_INLINE vec<double> load_widened(const float* p) { return vcvt_f64_f32(vld1_f32(p)); }
ATTNSCALE_INLINE void store_narrowed(double* p, vec<double> a) { store(p, a); }
ATTNSCALE_INLINE void store_narrowed(float* p, vec<double> a) { vst1_f32(p, vcvt_f32_f64(a)); }

/// One vector of float from 16-bit storage.
ATTNSCALE_INLINE vec<float> load_float16(const uint16_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
ATTNSCALE_INLINE vec<float> load_bfloat16(const uint16_t* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}

/// See avx512.hpp.
ATTNSCALE_INLINE vec<uint32_t> as_bits(vec<float> a) { return vreinterpretq_u32_f32(a); }
ATTNSCALE_INLINE vec<uint64_t> as_bits(vec<double> a) { return vreinterpretq_u64_f64(a); }
ATTNSCALE_INLINE vec<float> from_bits(vec<uint32_t> a) { return vreinterpretq_f32_u32(a); }
ATTNSCALE_INLINE vec<double> from_bits(vec<uint64_t> a) { return vreinterpretq_f64_u64(a); }

ATTNSCALE_INLINE vec<float> signed_to_float(vec<uint32_t> a) {
  return vcvtq_f32_s32(vreinterpretq_s32_u32(a));
}
ATTNSCALE_INLINE vec<double> signed_to_float(vec<uint64_t> a) {
  return vcvtq_f64_s64(vreinterpretq_s64_u64(a));
}

ATTNSCALE_INLINE vec<float> pick(vec<uint32_t> which, vec<float> a, vec<float> b) {
  const uint32x4_t mask = vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(which), 31));
  return vbslq_f32(mask, b, a);
}
ATTNSCALE_INLINE vec<double> pick(vec<uint64_t> which, vec<double> a, vec<double> b) {
  const uint64x2_t mask = vreinterpretq_u64_s64(vshrq_n_s64(vreinterpretq_s64_u64(which), 63));
  return vbslq_f64(mask, b, a);
}

ATTNSCALE_INLINE vec<uint64_t> multiply_low_halves(vec<uint64_t> a, vec<uint64_t> b) {
  return vmull_u32(vmovn_u64(a), vmovn_u64(b));
}
ATTNSCALE_INLINE vec<uint32_t> join_low_halves(vec<uint64_t> even, vec<uint64_t> odd) {
  return vtrn1q_u32(vreinterpretq_u32_u64(even), vreinterpretq_u32_u64(odd));
}
ATTNSCALE_INLINE vec<uint64_t> load_widened(const uint32_t* p) { return vmovl_u32(vld1_u32(p)); }
ATTNSCALE_INLINE vec<uint64_t> xor_three(vec<uint64_t> a, vec<uint64_t> b, vec<uint64_t> c) {
  return veorq_u64(veorq_u64(a, b), c);
}

}  // namespace
