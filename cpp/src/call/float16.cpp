// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/float16.hpp"

#include "kernels/simd/float16.hpp"

namespace attnscale {

float16::float16(float number) : bits_(float16_from_float(number)) {}
float16::operator float() const { return float_from_float16(bits_); }

bfloat16::bfloat16(float number) : bits_(bfloat16_from_float(number)) {}
bfloat16::operator float() const { return float_from_bfloat16(bits_); }

}  // namespace attnscale
