// SPDX-License-Identifier: BSD-3-Clause
#define ATTNSCALE_ARCH xsimd::avx512bw
#include "kernels/level-inl.hpp"

namespace attnscale::detail {
const kernel_table avx512_kernels = make_table("avx512");
}
