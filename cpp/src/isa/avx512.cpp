// SPDX-License-Identifier: BSD-3-Clause
#define ATTNSCALE_ARCH xsimd::avx512bw
#include "kernels/level-inl.hpp"

namespace attnscale::detail {
const level_kernels avx512_kernels = make_level("avx512");
}
