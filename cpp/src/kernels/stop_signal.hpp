// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace attnscale::detail {

/// Asked by kernels between tiles: true = leave now, the result is not wanted any more.
struct stop_signal {
  bool (*poll)(const void* state) noexcept;
  const void* state;
  bool requested() const noexcept { return poll(state); }
};

}  // namespace attnscale::detail
