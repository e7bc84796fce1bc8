// SPDX-License-Identifier: BSD-3-Clause
//
// From random bits to standard variates. Every level does the same correctly rounded operations (+
// - * / sqrt) in the same order, so the numbers are the same everywhere; SSE2 has no fused
// multiply-add and could emulate one only with many operations, so no level uses it here.
#pragma once

#include <stdint.h>

#include "kernels/random/random.hpp"
#include "kernels/simd/log-inl.hpp"
#include "kernels/simd/simd.hpp"

namespace {

using attnscale::detail::group_blocks;

/// Minimax polynomials (Remez in 60 digits; see docs/explanation/random.md):
///   sine, cosine of t pi/4 for |t| <= 1: sin / t and (cos - 1) / t^2 in t^2; 3e-9, 3e-18
///   quarter: sin(t pi/2) / t in t^2; 5e-9
template <class T>
struct variate_terms;

template <>
struct variate_terms<float> {
  static constexpr float sine[4] = {0x1.921fb6p-1f, -0x1.4abbbap-4f, 0x1.465e92p-9f,
                                    -0x1.2d9302p-15f};
  static constexpr float cosine[4] = {-0x1.3bd3ccp-2f, 0x1.03c1dep-6f, -0x1.55c5e0p-12f,
                                      0x1.d9d57ep-19f};
  static constexpr float quarter[5] = {0x1.921fb6p+0f, -0x1.4abbc2p-1f, 0x1.4668b0p-4f,
                                       -0x1.324ccap-8f, 0x1.3daff6p-13f};
  static constexpr float unit = 0x1p-32f;  // for all bits, as a number in [0, 1)
};

template <>
struct variate_terms<double> {
  static constexpr double sine[7] = {
      0x1.921fb54442d18p-1,  -0x1.4abbce625be41p-4,  0x1.466bc67758700p-9, -0x1.32d2cce2d5360p-15,
      0x1.50782fca38b8dp-22, -0x1.e30063a029a68p-30, 0x1.e3eed5ce53e68p-38};
  static constexpr double cosine[7] = {
      -0x1.3bd3cc9be45dep-2,  0x1.03c1f081b5aaep-6,  -0x1.55d3c7e3c9280p-12, 0x1.e1f5068367b1dp-19,
      -0x1.a6d1ec7e0b6bep-26, 0x1.f9cc40ac9a543p-34, -0x1.b263c34660ec1p-42};
  static constexpr double unit = 0x1p-64;
};

/// A uniform number and the part lost to rounding near 1: value + rest.
template <class T>
struct open_unit {
  vec<T> value, rest;
};

/// U = (bits + 1/2) unit in (0, 1), with bits read as signed; a negative number stands for its
/// distance from 1: both ends have the full precision of T.
template <class T>
ATTNSCALE_INLINE open_unit<T> uniform_of(vec<bits_t<T>> b, T half) {
  const vec<T> x = (signed_to_float(b) + broadcast(half)) * broadcast(variate_terms<T>::unit);
  const vec<T> end = pick(b, broadcast(T(0)), broadcast(T(1)));
  const vec<T> value = end + x;
  return {value, x - (value - end)};
}

/// The uniform number of an exponential variate, before its logarithm.
template <class T>
ATTNSCALE_INLINE log_argument<T> split_uniform(vec<bits_t<T>> b, T half = T(0.5)) {
  const open_unit<T> u = uniform_of<T>(b, half);
  return split_log(u.value, u.rest);
}

/// A standard exponential variate, -log U.
template <class T>
ATTNSCALE_INLINE vec<T> exponential(vec<bits_t<T>> b, T half = T(0.5)) {
  return minus_log(split_uniform<T>(b, half));
}

/// t in (-1, 1) for the angle t pi/4, from all but the top two bits.
template <class T>
ATTNSCALE_INLINE vec<T> eighth_turns(vec<bits_t<T>> angle) {
  return signed_to_float((angle << 2) | broadcast(bits_t<T>(2))) *
         broadcast(2 * variate_terms<T>::unit);
}
template <class T>
ATTNSCALE_INLINE vec<T> sine_of(vec<T> t) {
  return t * polynomial(t * t, variate_terms<T>::sine);
}
template <class T>
ATTNSCALE_INLINE vec<T> cosine_of(vec<T> t) {
  const vec<T> z = t * t;
  return z * polynomial(z, variate_terms<T>::cosine) + broadcast(T(1));
}

template <class T>
struct normal_pair {
  vec<T> x, y;
};

/// Applies the top two bits of the angle: the first is the sign of both numbers, the second swaps
/// them.
template <class T>
ATTNSCALE_INLINE normal_pair<T> turn(vec<T> radius, vec<T> sine, vec<T> cosine,
                                     vec<bits_t<T>> angle) {
  using bits = bits_t<T>;
  constexpr bits top = bits(1) << (8 * sizeof(T) - 1);
  const vec<T> r = from_bits(as_bits(radius) ^ (angle & broadcast(top)));
  const vec<bits> exchange = angle << 1;
  return {r * pick(exchange, cosine, sine), r * pick(exchange, sine, cosine)};
}

/// Element vectors of a group: word w of 16 blocks for float, two words for double.
ATTNSCALE_INLINE vec<uint32_t> slot_bits(const uint32_t* words, int slot, int lane, float) {
  return load(words + group_blocks * slot + lane);
}
ATTNSCALE_INLINE vec<uint64_t> slot_bits(const uint32_t* words, int slot, int lane, double) {
  const uint32_t* const low = words + 2 * group_blocks * slot + lane;
  return load_widened(low) | (load_widened(low + group_blocks) << 32);
}

}  // namespace
