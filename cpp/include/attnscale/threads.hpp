// SPDX-License-Identifier: BSD-3-Clause
//
// How many threads a call has. The calling thread is one of them; the others are started when a
// call first wants them, sleep between calls and stay until the process ends. One call has them at
// a time: another one that comes from another thread meanwhile runs on its own thread alone, as
// does a call inside a task of another. Results have the same bits either way.
#pragma once

#include "attnscale/detail/export.hpp"

namespace attnscale {

/// Threads a call uses when it does not say: ATTNSCALE_NUM_THREADS, else the CPUs this process
/// may run on (affinity and cgroup quota). A bad value in the environment is a
/// std::runtime_error here, at the first use.
ATTNSCALE_EXPORT int num_threads();

/// Sets the default for the whole process; n >= 1 (std::invalid_argument otherwise). num_threads()
/// is then n, of which a call takes max_threads() at most.
ATTNSCALE_EXPORT void set_num_threads(int n);

/// The most threads that a call takes, whatever it is asked to take: 256, or the CPUs that this
/// process may run on where they are more.
ATTNSCALE_EXPORT int max_threads();

}  // namespace attnscale

extern "C" {
/// For threadpoolctl, which looks symbols up by name in the loaded library. They cannot throw:
/// get returns 0 when the environment variable is bad, set ignores n < 1.
int attnscale_get_num_threads();
void attnscale_set_num_threads(int n);
const char* attnscale_get_version();
}
