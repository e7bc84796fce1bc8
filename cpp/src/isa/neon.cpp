// SPDX-License-Identifier: BSD-3-Clause
#include <xsimd/xsimd.hpp>

namespace {
using arch = xsimd::neon64;
}

#include "kernels/make_table-inl.hpp"

namespace attnscale::detail {
const kernel_table neon_kernels = make_table("neon");
}
