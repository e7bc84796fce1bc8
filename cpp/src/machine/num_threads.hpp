// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

namespace attnscale::detail {

/// Number of CPUs that this process may use: its affinity mask, limited by the CPU quota of its
/// cgroup. >= 1.
int usable_cpus();

/// Number of CPUs that a quota allows, rounded up; `text` is a cgroup v2 cpu.max: "quota period" or
/// "max period". 0 = no limit, or text that cannot be parsed.
int quota_cpus(const std::string& text);

/// Number of CPUs that the quotas of this process's cgroups allow, of version 1 or 2 and on any
/// level; 0 = no limit. The folder `root` holds /proc and /sys: "", but in tests.
int cgroup_cpus(const std::string& root);

/// Number of threads for a call that asks for this many: at most max_threads().
int threads_of_call(int asked);

/// Number of threads that ATTNSCALE_NUM_THREADS or a caller chose; 0: nobody did.
int chosen_threads();

/// Sets the number for the process; 0: that of the environment, if any.
void choose_threads(int n);

/// The value of ATTNSCALE_NUM_THREADS; anything but an integer >= 1 throws std::runtime_error.
int parse_num_threads(const char* text);

}  // namespace attnscale::detail
