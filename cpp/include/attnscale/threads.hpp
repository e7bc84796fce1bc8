// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace attnscale {

/// Threads a call uses when it does not say: ATTNSCALE_NUM_THREADS, else the CPUs this process
/// may run on.
int num_threads() noexcept;

/// Sets the default for the whole process; n >= 1 (std::invalid_argument otherwise).
void set_num_threads(int n);

}  // namespace attnscale
