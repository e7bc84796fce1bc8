// SPDX-License-Identifier: BSD-3-Clause
#include "machine/num_threads.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "attnscale/threads.hpp"
#include "attnscale/version.hpp"
#include "machine/openmp_team.hpp"

#if defined(__linux__)
#include <sched.h>
#endif

namespace attnscale {
namespace detail {
namespace {

/// Number of threads that a call may take on any machine, however few CPUs it has.
constexpr int enough_threads = 256;

int affinity_cpus() {
#if defined(__linux__)
  // The kernel refuses a mask smaller than its own: the fixed type holds 1024 CPUs; double it from
  // there.
  for (int capacity = CPU_SETSIZE; capacity <= (1 << 20); capacity *= 2) {
    cpu_set_t* mask = CPU_ALLOC(static_cast<std::size_t>(capacity));
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(capacity));
    const bool known = mask != nullptr && sched_getaffinity(0, bytes, mask) == 0;
    const int count = known ? CPU_COUNT_S(bytes, mask) : 0;
    CPU_FREE(mask);
    if (known) return count;
  }
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

/// The tighter of two limits, where 0 is none.
int tighter(int a, int b) { return a > 0 && b > 0 ? std::min(a, b) : std::max(a, b); }

/// The tightest quota of a cgroup and of those above it; `cpus_of` reads one. A container sees its
/// own group as the root, where the groups of its name are missing; any level may set the limit.
template <class Cpus>
int tightest(std::string group, Cpus cpus_of) {
  int limit = 0;
  while (true) {
    limit = tighter(limit, cpus_of(group));
    if (group.empty()) return limit;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

}  // namespace

int quota_cpus(const std::string& text) {
  double quota = 0, period = 0;
  std::istringstream words(text);
  if (!(words >> quota >> period) || quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::min(std::ceil(quota / period), double(INT_MAX)));
}

int cgroup_cpus(const std::string& root) {
  std::string unified, of_cpu, line;  // groups of version 2 and, by its controller, of version 1
  std::ifstream membership(root + "/proc/self/cgroup");
  while (std::getline(membership, line)) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    if (line.rfind("0::", 0) == 0) unified = line.substr(second + 1);
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    for (std::string name; std::getline(controllers, name, ',');)
      if (name == "cpu") of_cpu = line.substr(second + 1);
  }
  const std::string mounts = root + "/sys/fs/cgroup";
  const auto second_version = [&](const std::string& group) {
    return quota_cpus(first_line(mounts + group + "/cpu.max"));
  };
  const auto first_version = [&](const std::string& group) {
    const std::string folder = mounts + "/cpu" + group;
    return quota_cpus(first_line(folder + "/cpu.cfs_quota_us") + " " +
                      first_line(folder + "/cpu.cfs_period_us"));
  };
  return tighter(tightest(unified, second_version), tightest(of_cpu, first_version));
}

int usable_cpus() {
  const int allowed = std::max(affinity_cpus(), 1);
  const int quota = cgroup_cpus("");
  return quota > 0 ? std::min(allowed, quota) : allowed;
}

int threads_of_call(int asked) {
  return asked <= enough_threads ? asked : std::min(asked, max_threads());
}

int parse_num_threads(const char* text) {
  int n = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, n);
  if (error == std::errc{} && stop == end && n >= 1) return n;
  throw std::runtime_error("ATTNSCALE_NUM_THREADS must be an integer >= 1, got '" +
                           std::string(text) + "'");
}

}  // namespace detail

namespace detail {
namespace {

std::atomic<int> threads_of_choice{0};

/// Number of threads where nobody chose one.
int unchosen_threads() {
  static const int usable = usable_cpus();
  const openmp_team* const team = adopted_team();
  return team == nullptr ? usable : std::clamp(team->asked(), 1, usable);
}

}  // namespace

int chosen_threads() {
  static const int by_environment = [] {
    const char* text = std::getenv("ATTNSCALE_NUM_THREADS");
    return text != nullptr && *text != '\0' ? parse_num_threads(text) : 0;
  }();
  const int n = threads_of_choice.load(std::memory_order_relaxed);
  return n > 0 ? n : by_environment;
}

void choose_threads(int n) { threads_of_choice.store(n, std::memory_order_relaxed); }

}  // namespace detail

int num_threads() {
  const int n = detail::chosen_threads();
  return n > 0 ? n : detail::unchosen_threads();
}

int max_threads() {
  static const int most = std::max(detail::enough_threads, detail::usable_cpus());
  return most;
}

void set_num_threads(int n) {
  if (n < 1) {
    throw std::invalid_argument("num_threads must be >= 1, got " + std::to_string(n));
  }
  detail::choose_threads(n);
}

std::string use_threads_of(const std::string& library) {
  detail::adopt_team(detail::openmp_team_of(library.c_str()));
  return threads_library();
}

std::string threads_library() {
  const detail::openmp_team* const team = detail::adopted_team();
  return team == nullptr ? "" : team->name;
}

}  // namespace attnscale

// Visible although the library hides all else: threadpoolctl finds these by name.
#define ATTNSCALE_VISIBLE __attribute__((visibility("default")))

extern "C" {

ATTNSCALE_VISIBLE int attnscale_get_num_threads() {
  try {
    return attnscale::num_threads();
  } catch (const std::exception&) {
    return 0;
  }
}

// threadpoolctl sets the number that it found, to end a limit: the default then holds again.
ATTNSCALE_VISIBLE void attnscale_set_num_threads(int n) {
  if (n >= 1) attnscale::detail::choose_threads(n == attnscale::detail::unchosen_threads() ? 0 : n);
}

ATTNSCALE_VISIBLE const char* attnscale_get_version() { return ATTNSCALE_VERSION; }
}
