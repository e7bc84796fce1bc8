// SPDX-License-Identifier: BSD-3-Clause
//
// Scalar conversions between float and 16-bit storage, rounding to nearest even.
#pragma once

#include <stdint.h>

namespace {

inline uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

inline float float_from_bfloat16(uint16_t h) { return float_of(static_cast<uint32_t>(h) << 16); }

/// No branches, here and in float16_from_float, so that compilers vectorise loops over rows.
inline uint16_t bfloat16_from_float(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/// The exponent is rebiased by a multiplication, which also normalises subnormal halves.
inline float float_from_float16(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7fffu) << 13;
  if (magnitude >= 0x0f800000u) return float_of(sign | 0x70000000u | magnitude);  // inf, NaN
  return float_of(sign | bits_of(float_of(magnitude) * float_of(0x77800000u)));   // * 2^112
}

inline uint16_t float16_from_float(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Subnormal half: adding 0.5 leaves the value's multiple of 2^-24 in the low bits.
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t rounded = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  uint32_t half = magnitude < 0x38800000u ? subnormal : rounded;
  half = magnitude >= 0x477ff000u ? 0x7c00u : half;  // rounds to inf
  half = magnitude > 0x7f800000u ? 0x7e00u : half;   // NaN
  return static_cast<uint16_t>(sign | half);
}

}  // namespace
