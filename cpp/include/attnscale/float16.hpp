// SPDX-License-Identifier: BSD-3-Clause
//
// 16-bit floating-point numbers as storage for queries, keys, values and masks. They convert to
// float implicitly, and arithmetic is float; narrowing is explicit and rounds to nearest, ties to
// even.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>

#include "attnscale/detail/export.hpp"

namespace attnscale {

/// IEEE 754 binary16: 1 sign bit, 5 exponent bits, 10 mantissa bits.
class ATTNSCALE_EXPORT float16 {
 public:
  float16() = default;
  explicit float16(float number);
  operator float() const;
  std::uint16_t bits() const { return bits_; }
  static float16 from_bits(std::uint16_t bits) { return std::bit_cast<float16>(bits); }

 private:
  std::uint16_t bits_;
};

/// The upper half of a float: 1 sign bit, 8 exponent bits, 7 mantissa bits.
class ATTNSCALE_EXPORT bfloat16 {
 public:
  bfloat16() = default;
  explicit bfloat16(float number);
  operator float() const;
  std::uint16_t bits() const { return bits_; }
  static bfloat16 from_bits(std::uint16_t bits) { return std::bit_cast<bfloat16>(bits); }

 private:
  std::uint16_t bits_;
};

/// 16-bit storage types, whose arithmetic is float.
template <class T>
concept half_width = std::same_as<T, float16> || std::same_as<T, bfloat16>;

}  // namespace attnscale
