// SPDX-License-Identifier: BSD-3-Clause
//
// Emulation, for tests, of avx512_bfloat16.hpp with the operations of any level, far slower than
// float32. VDPBF16PS adds the product of the high numbers first, then that of the low ones, each
// with one rounding to nearest even; VCVTNE2PS2BF16 rounds to nearest even and keeps NaN. Both
// treat denormal numbers as zeros of their sign, and denormal sums become zero. (A sum that rounds
// up to the least normal number is kept here; the instruction returns zero.)
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/float16.hpp"
#include "kernels/simd/simd.hpp"

namespace {

/// x, with denormal numbers replaced by zeros of their sign.
ATTNSCALE_INLINE vec<float> flushed(vec<float> x) {
  const vec<float> zero = from_bits(as_bits(x) & broadcast(0x80000000u));
  return xsimd::select(xsimd::abs(x) < broadcast(limits<float>::least_normal), zero, x);
}

/// One of the two numbers of each lane.
ATTNSCALE_INLINE vec<float> low_of(vec<uint32_t> pair) { return flushed(from_bits(pair << 16)); }
ATTNSCALE_INLINE vec<float> high_of(vec<uint32_t> pair) {
  return flushed(from_bits(pair & broadcast(0xffff0000u)));
}

/// sum + low(a) low(b) + high(a) high(b) of each lane.
ATTNSCALE_INLINE vec<float> add_products(vec<uint32_t> a, vec<uint32_t> b, vec<float> sum) {
  sum = flushed(fma(high_of(a), high_of(b), flushed(sum)));
  return flushed(fma(low_of(a), low_of(b), sum));
}

/// Two neighbours in memory, broadcast to every lane.
ATTNSCALE_INLINE vec<uint32_t> broadcast_pair(const uint16_t* p) {
  uint32_t bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return broadcast(bits);
}

/// The bfloat16 number next to each lane, in its low half.
ATTNSCALE_INLINE vec<uint32_t> rounded(vec<float> x) {
  const vec<uint32_t> bits = as_bits(flushed(x)), high = bits >> 16;
  const vec<uint32_t> nearest = (bits + broadcast(0x7fffu) + (high & broadcast(1u))) >> 16;
  return as_bits(xsimd::select(x == x, from_bits(nearest), from_bits(high | broadcast(0x40u))));
}

/// Two vectors rounded to bfloat16, as the pair of a lane.
ATTNSCALE_INLINE vec<uint32_t> rounded_pair(vec<float> low, vec<float> high) {
  return rounded(low) | (rounded(high) << 16);
}

/// Two vectors rounded to bfloat16, stored one after the other.
ATTNSCALE_INLINE void store_rounded(uint16_t* p, vec<float> first, vec<float> second) {
  constexpr int w = width<float>;
  uint32_t lanes[2 * w];
  store(lanes, rounded(first));
  store(lanes + w, rounded(second));
  for (int i = 0; i < 2 * w; ++i) p[i] = static_cast<uint16_t>(lanes[i]);
}

/// Pairs low[0] high[0] low[1] high[1] ..., one per lane.
ATTNSCALE_INLINE vec<uint32_t> interleaved_pair(const uint16_t* low, const uint16_t* high) {
  return (as_bits(load_bfloat16(low)) >> 16) | as_bits(load_bfloat16(high));
}

/// Whether one of the numbers is NaN or infinite.
ATTNSCALE_INLINE bool any_nonfinite(const uint16_t* p, int64_t count) {
  bool found = false;
  for (int64_t i = 0; i < count; ++i) found |= (p[i] & 0x7f80) == 0x7f80;
  return found;
}

}  // namespace
