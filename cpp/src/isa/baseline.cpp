// SPDX-License-Identifier: BSD-3-Clause
#define ATTNSCALE_ARCH xsimd::sse2
#include "kernels/level-inl.hpp"

namespace attnscale::detail {
const level_kernels baseline_kernels = make_level("baseline");
}
