// SPDX-License-Identifier: BSD-3-Clause
#define ATTNSCALE_ARCH xsimd::neon64
#include "kernels/level-inl.hpp"

namespace attnscale::detail {
const level_kernels neon_kernels = make_level("neon");
}
