// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

namespace attnscale::detail {

/// CPUs this process may keep busy: its affinity mask, cut by the CPU quota of its cgroup. >= 1.
int usable_cpus();

/// CPUs that a quota allows, rounded up; `text` is a cgroup v2 cpu.max: "quota period" or
/// "max period". 0 = no limit, or nothing that can be read as one.
int quota_cpus(const std::string& text);

/// What a call takes of the threads that it is asked to take: at most max_threads().
int threads_of_call(int asked);

/// The value of ATTNSCALE_NUM_THREADS; anything but an integer >= 1 is a std::runtime_error.
int parse_num_threads(const char* text);

}  // namespace attnscale::detail
