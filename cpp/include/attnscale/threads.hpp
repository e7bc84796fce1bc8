// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace attnscale {

/// Threads a call uses when it does not say: ATTNSCALE_NUM_THREADS, else the CPUs this process
/// may run on (affinity and cgroup quota). A bad value in the environment is a
/// std::runtime_error here, at the first use.
int num_threads();

/// Sets the default for the whole process; n >= 1 (std::invalid_argument otherwise).
void set_num_threads(int n);

}  // namespace attnscale

// For threadpoolctl, which looks symbols up by name in the loaded library. They cannot throw:
// get returns 0 when the environment variable is bad, set ignores n < 1.
extern "C" {
int attnscale_get_num_threads();
void attnscale_set_num_threads(int n);
const char* attnscale_get_version();
}
