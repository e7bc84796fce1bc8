// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <wasm_simd128.h>

#include "kernels/simd/float16.hpp"
#include "kernels/simd/simd.hpp"

namespace {

/// Vectors of scores per product in registers: engines have the 16 registers of SSE2.
constexpr int panel_vectors = 2;

/// Two roundings, as in SSE2. The relaxed multiply-add of WebAssembly rounds once or twice
/// depending on the machine, so results would have no defined bits.
ATTNSCALE_INLINE vec<float> fma(vec<float> a, vec<float> b, vec<float> c) {
  return wasm_f32x4_add(wasm_f32x4_mul(a, b), c);
}
ATTNSCALE_INLINE vec<double> fma(vec<double> a, vec<double> b, vec<double> c) {
  return wasm_f64x2_add(wasm_f64x2_mul(a, b), c);
}

/// max and min that return b if either is NaN: pmax(x, y) is x < y ? y : x.
ATTNSCALE_INLINE vec<float> max_or(vec<float> a, vec<float> b) { return wasm_f32x4_pmax(b, a); }
ATTNSCALE_INLINE vec<double> max_or(vec<double> a, vec<double> b) { return wasm_f64x2_pmax(b, a); }
ATTNSCALE_INLINE vec<float> min_or(vec<float> a, vec<float> b) { return wasm_f32x4_pmin(b, a); }
ATTNSCALE_INLINE vec<double> min_or(vec<double> a, vec<double> b) { return wasm_f64x2_pmin(b, a); }

/// See avx512.hpp.
ATTNSCALE_INLINE vec<float> reciprocal(vec<float> a) { return broadcast(1.0f) / a; }
ATTNSCALE_INLINE vec<double> reciprocal(vec<double> a) { return broadcast(1.0) / a; }

/// Bits of the lanes where a is above b, or either is NaN.
ATTNSCALE_INLINE unsigned not_below(vec<float> a, vec<float> b) {
  return wasm_i32x4_bitmask(wasm_v128_not(wasm_f32x4_le(a, b)));
}
ATTNSCALE_INLINE unsigned not_below(vec<double> a, vec<double> b) {
  return wasm_i64x2_bitmask(wasm_v128_not(wasm_f64x2_le(a, b)));
}

/// See avx512.hpp.
ATTNSCALE_INLINE vec<float> exponent_from_mantissa(vec<float> r) { return wasm_i32x4_shl(r, 23); }
ATTNSCALE_INLINE vec<double> exponent_from_mantissa(vec<double> r) { return wasm_i64x2_shl(r, 52); }

/// Interleaves the low (high) halves of a and b: a0 b0 a1 b1 ...
ATTNSCALE_INLINE vec<float> interleave_low(vec<float> a, vec<float> b) {
  return wasm_i32x4_shuffle(a, b, 0, 4, 1, 5);
}
ATTNSCALE_INLINE vec<float> interleave_high(vec<float> a, vec<float> b) {
  return wasm_i32x4_shuffle(a, b, 2, 6, 3, 7);
}
ATTNSCALE_INLINE vec<double> interleave_low(vec<double> a, vec<double> b) {
  return wasm_i64x2_shuffle(a, b, 0, 2);
}
ATTNSCALE_INLINE vec<double> interleave_high(vec<double> a, vec<double> b) {
  return wasm_i64x2_shuffle(a, b, 1, 3);
}

/// out[i] += a[i], widened to double.
ATTNSCALE_INLINE void add_to_double(double* out, vec<double> a) {
  wasm_v128_store(out, wasm_f64x2_add(wasm_v128_load(out), a));
}
ATTNSCALE_INLINE void add_to_double(double* out, vec<float> a) {
  const v128_t low = a, high = wasm_i64x2_shuffle(low, low, 1, 1);
  wasm_v128_store(out, wasm_f64x2_add(wasm_v128_load(out), wasm_f64x2_promote_low_f32x4(low)));
  wasm_v128_store(out + 2,
                  wasm_f64x2_add(wasm_v128_load(out + 2), wasm_f64x2_promote_low_f32x4(high)));
}

/// See avx512.hpp.
ATTNSCALE_INLINE vec<double> load_widened(const double* p) { return load(p); }
ATTNSCALE_INLINE vec<double> load_widened(const float* p) {
  return wasm_f64x2_promote_low_f32x4(wasm_v128_load64_zero(p));
}
ATTNSCALE_INLINE void store_narrowed(double* p, vec<double> a) { store(p, a); }
ATTNSCALE_INLINE void store_narrowed(float* p, vec<double> a) {
  wasm_v128_store64_lane(p, wasm_f32x4_demote_f64x2_zero(a), 0);
}

/// One vector of float from 16-bit storage.
ATTNSCALE_INLINE vec<float> load_float16(const uint16_t* p) {
  return wasm_f32x4_make(float_from_float16(p[0]), float_from_float16(p[1]),
                         float_from_float16(p[2]), float_from_float16(p[3]));
}
ATTNSCALE_INLINE vec<float> load_bfloat16(const uint16_t* p) {
  return wasm_i32x4_shl(wasm_u32x4_load16x4(p), 16);
}

/// See avx512.hpp.
ATTNSCALE_INLINE vec<uint32_t> as_bits(vec<float> a) { return v128_t(a); }
ATTNSCALE_INLINE vec<uint64_t> as_bits(vec<double> a) { return v128_t(a); }
ATTNSCALE_INLINE vec<float> from_bits(vec<uint32_t> a) { return v128_t(a); }
ATTNSCALE_INLINE vec<double> from_bits(vec<uint64_t> a) { return v128_t(a); }

ATTNSCALE_INLINE vec<float> signed_to_float(vec<uint32_t> a) { return wasm_f32x4_convert_i32x4(a); }
ATTNSCALE_INLINE vec<double> signed_to_float(vec<uint64_t> a) {
  const v128_t x = a;
  return wasm_f64x2_make(static_cast<double>(wasm_i64x2_extract_lane(x, 0)),
                         static_cast<double>(wasm_i64x2_extract_lane(x, 1)));
}

ATTNSCALE_INLINE vec<float> pick(vec<uint32_t> which, vec<float> a, vec<float> b) {
  return wasm_v128_bitselect(b, a, wasm_i32x4_shr(which, 31));
}
ATTNSCALE_INLINE vec<double> pick(vec<uint64_t> which, vec<double> a, vec<double> b) {
  return wasm_v128_bitselect(b, a, wasm_i64x2_shr(which, 63));
}

ATTNSCALE_INLINE vec<uint64_t> multiply_low_halves(vec<uint64_t> a, vec<uint64_t> b) {
  const v128_t x = wasm_i32x4_shuffle(a, a, 0, 2, 0, 2), y = wasm_i32x4_shuffle(b, b, 0, 2, 0, 2);
  return wasm_u64x2_extmul_low_u32x4(x, y);
}
ATTNSCALE_INLINE vec<uint32_t> join_low_halves(vec<uint64_t> even, vec<uint64_t> odd) {
  return wasm_i32x4_shuffle(even, odd, 0, 4, 2, 6);
}
ATTNSCALE_INLINE vec<uint64_t> load_widened(const uint32_t* p) {
  return wasm_u64x2_extend_low_u32x4(wasm_v128_load64_zero(p));
}
ATTNSCALE_INLINE vec<uint64_t> xor_three(vec<uint64_t> a, vec<uint64_t> b, vec<uint64_t> c) {
  return wasm_v128_xor(wasm_v128_xor(a, b), c);
}

}  // namespace
