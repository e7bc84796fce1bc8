// SPDX-License-Identifier: BSD-3-Clause
#include <xsimd/xsimd.hpp>

namespace {
using arch = xsimd::avx512bw;
}

#include "kernels/make_table-inl.hpp"

namespace attnscale::detail {
const kernel_table avx512_kernels = make_table("avx512");
}
