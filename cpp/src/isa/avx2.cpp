// SPDX-License-Identifier: BSD-3-Clause
#define ATTNSCALE_ARCH xsimd::fma3<xsimd::avx2>
#include "kernels/level-inl.hpp"

namespace attnscale::detail {
const kernel_table avx2_kernels = make_table("avx2");
}
