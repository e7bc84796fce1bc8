// SPDX-License-Identifier: BSD-3-Clause
#define ATTNSCALE_ARCH xsimd::sse2
#include "kernels/level-inl.hpp"

namespace attnscale::detail {
const kernel_table baseline_kernels = make_table("baseline");
}
