// SPDX-License-Identifier: BSD-3-Clause
#include "linear.hpp"

#include "kernels/level.hpp"
#include "scratch.hpp"

namespace attnscale::detail {

void run(linear_block block, bool wide) {
  const typed_kernels& kernels = wide ? active_kernels().float64 : active_kernels().float32;
  block.scratch = thread_scratch(kernels.linear_scratch(block));
  kernels.linear(block);
}

}  // namespace attnscale::detail
