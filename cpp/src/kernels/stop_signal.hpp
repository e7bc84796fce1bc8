// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace attnscale::detail {

/// Signal that kernels poll between tiles: true = stop, the result is not needed.
struct stop_signal {
  bool (*poll)(const void* state) noexcept;
  const void* state;
  bool requested() const noexcept { return poll(state); }
};

}  // namespace attnscale::detail
