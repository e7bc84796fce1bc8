// SPDX-License-Identifier: BSD-3-Clause
#define ATTNSCALE_ARCH xsimd::fma3<xsimd::avx2>
#include "kernels/level-inl.hpp"

namespace attnscale::detail {
const level_kernels avx2_kernels = make_level("avx2");
}
