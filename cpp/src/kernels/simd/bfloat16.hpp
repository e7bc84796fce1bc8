// SPDX-License-Identifier: BSD-3-Clause
//
// Pairs of bfloat16 numbers; AVX512-BF16 multiplies and adds two per lane. The instruction treats
// denormal numbers as zero and rounds each of the two sums to nearest.
#pragma once

#include "kernels/simd/simd.hpp"

#if defined(__AVX512BF16__)
#include "kernels/simd/avx512_bfloat16.hpp"
#else
#include "kernels/simd/emulated_bfloat16.hpp"
#endif
