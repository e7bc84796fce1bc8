// SPDX-License-Identifier: BSD-3-Clause
//
// Program that prints the SIMD level that a build of all levels would choose on this machine
// (ATTNSCALE_SIMD_LEVELS=native). It has the tables of all levels, without kernels in them.
#include <cstdio>

#include "machine/dispatch.hpp"

namespace attnscale::detail {

#define ATTNSCALE_DEFINE_UNITS(level)                  \
  namespace level {                                    \
  extern const softmax_unit softmax{};                 \
  extern const sparse_unit sparse{};                   \
  extern const scales_unit scales{};                   \
  extern const gradient_unit gradient{};               \
  extern const linear_unit linear{};                   \
  extern const linear_gradient_unit linear_gradient{}; \
  extern const random_unit random{};                   \
  }
#define ATTNSCALE_DEFINE_BFLOAT16(level) \
  namespace level {                      \
  extern const bfloat16_unit bfloat16{}; \
  }

ATTNSCALE_FOR_LEVELS(ATTNSCALE_DEFINE_UNITS)
ATTNSCALE_FOR_BFLOAT16_LEVELS(ATTNSCALE_DEFINE_BFLOAT16)

}  // namespace attnscale::detail

int main() { std::printf("%s", attnscale::detail::kernels_for(nullptr).name); }
