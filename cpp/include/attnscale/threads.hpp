// SPDX-License-Identifier: BSD-3-Clause
//
// Number of threads of a call. The calling thread is one of them; the others start with the first
// call that needs them, sleep between calls and stay until the process ends. One call has them at a
// time: a call from another thread meanwhile runs on its own thread alone, as does a call inside a
// task of another. Results have the same bits either way.
//
// Beside a library whose own threads wait awake, as those of PyTorch do, these would have half of
// the CPUs: use_threads_of() runs calls on that library's threads.
#pragma once

#include <string>

#include "attnscale/detail/export.hpp"

namespace attnscale {

/// Default number of threads of a call: ATTNSCALE_NUM_THREADS, else the number of CPUs that this
/// process may use (affinity and cgroup quota), and at most that of the library of
/// use_threads_of(). A bad value in the environment throws std::runtime_error here, at the first
/// use.
ATTNSCALE_EXPORT int num_threads();

/// Sets the default for the whole process; n >= 1 (std::invalid_argument otherwise). num_threads()
/// then returns n; a call uses at most max_threads().
ATTNSCALE_EXPORT void set_num_threads(int n);

/// Maximum number of threads of a call: 256, or the number of CPUs that this process may use if
/// that is larger.
ATTNSCALE_EXPORT int max_threads();

/// Runs later calls on the OpenMP threads of a library that the process has loaded, named as the
/// loader knows it ("libtorch_cpu.so"), if they want at most its number of threads. Returns the
/// path of the OpenMP runtime; empty if the library or its runtime is not found: calls then run on
/// threads of their own, as they do in the child of a fork.
ATTNSCALE_EXPORT std::string use_threads_of(const std::string& library);

/// Path of the OpenMP runtime whose threads run calls; empty for threads of their own.
ATTNSCALE_EXPORT std::string threads_library();

}  // namespace attnscale

extern "C" {
/// Functions for threadpoolctl, which looks symbols up by name in the loaded library. They cannot
/// throw: get returns 0 when the environment variable is bad, set ignores n < 1.
int attnscale_get_num_threads();
void attnscale_set_num_threads(int n);
const char* attnscale_get_version();
}
