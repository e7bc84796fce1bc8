// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

#include <unistd.h>

#include "attnscale/threads.hpp"
#include "machine/num_threads.hpp"
#include "machine/thread_pool.hpp"

namespace test_thread_pool {

using attnscale::execution;
using attnscale::interrupted;
using attnscale::detail::parallel_for;
using attnscale::detail::stop_signal;
using namespace std::chrono_literals;

namespace {

using clock_type = std::chrono::steady_clock;

execution threads(int n) {
  execution how;
  how.num_threads = n;
  return how;
}

/// Runs n_tasks tasks and returns how often each one ran.
std::vector<int> count_runs(std::int64_t n_tasks, int n_threads) {
  std::vector<std::atomic<int>> counts(static_cast<std::size_t>(n_tasks));
  parallel_for(n_tasks, threads(n_threads), [&](std::int64_t task, const stop_signal&) {
    counts[static_cast<std::size_t>(task)].fetch_add(1);
  });
  return {counts.begin(), counts.end()};
}

/// Requests an interrupt at poll number `last`; records the number of polls and their threads.
struct alarm_clock {
  int last = 2;
  std::thread::id owner = std::this_thread::get_id();
  int calls = 0;
  bool foreign = false;

  execution watch(int n_threads) {
    execution how = threads(n_threads);
    how.context = this;
    how.interrupted = [](void* self) {
      auto& me = *static_cast<alarm_clock*>(self);
      ++me.calls;
      me.foreign |= me.owner != std::this_thread::get_id();
      return me.calls >= me.last;
    };
    return how;
  }
};

}  // namespace

TEST_CASE("every task runs exactly once, for any number of threads") {
  for (const std::int64_t n_tasks : {0, 1, 2, 3, 7, 64, 1000}) {
    for (const int n_threads : {0, 1, 2, 3, 8}) {
      CAPTURE(n_tasks);
      CAPTURE(n_threads);
      CHECK(count_runs(n_tasks, n_threads) ==
            std::vector<int>(static_cast<std::size_t>(n_tasks), 1));
    }
  }
}

TEST_CASE("a loop uses at most the threads it was given, and really uses them") {
  for (const int limit : {3, 2, 1, 3}) {  // down: existing threads must stay out
    std::mutex mutex;
    std::set<std::thread::id> seen;
    const auto arrived = [&](bool insert) {
      const std::lock_guard lock(mutex);
      if (insert) seen.insert(std::this_thread::get_id());
      return seen.size();
    };
    const auto give_up = clock_type::now() + 30s;
    parallel_for(32, threads(limit), [&](std::int64_t, const stop_signal&) {
      arrived(true);
      while (arrived(false) < static_cast<std::size_t>(limit) && clock_type::now() < give_up)
        std::this_thread::sleep_for(1ms);
    });
    CHECK(seen.size() == static_cast<std::size_t>(limit));
    CHECK(seen.count(std::this_thread::get_id()) == 1);
  }
}

TEST_CASE("one task runs on the calling thread") {
  std::thread::id where;
  parallel_for(1, threads(4),
               [&](std::int64_t, const stop_signal&) { where = std::this_thread::get_id(); });
  CHECK(where == std::this_thread::get_id());
}

TEST_CASE("the first exception of a task ends the loop and reaches the caller") {
  for (const int n_threads : {1, 2, 4}) {
    std::atomic<int> runs{0};
    const auto loop = [&] {
      parallel_for(100000, threads(n_threads), [&](std::int64_t task, const stop_signal&) {
        ++runs;
        std::this_thread::sleep_for(100us);
        if (task == 5) throw std::out_of_range("task 5");
      });
    };
    CHECK_THROWS_WITH_AS(loop(), "task 5", std::out_of_range);
    CHECK(runs < 50000);  // others go on until they see it
    CHECK(count_runs(50, n_threads) == std::vector<int>(50, 1));
  }
}

TEST_CASE("an interrupt between short tasks ends the loop") {
  for (const int n_threads : {1, 2, 4}) {
    alarm_clock alarm{3};
    const auto start = clock_type::now();
    const auto loop = [&] {
      parallel_for(1 << 30, alarm.watch(n_threads),
                   [](std::int64_t, const stop_signal&) { std::this_thread::sleep_for(1ms); });
    };
    CHECK_THROWS_AS(loop(), interrupted);
    CHECK(!alarm.foreign);
    CHECK(alarm.calls == 3);
    CHECK(clock_type::now() - start >= 3 * 20ms);  // polled seldom; other load adds to this
  }
}

TEST_CASE("an interrupt check that throws ends the loop, and its exception reaches the caller") {
  for (const int n_threads : {1, 2, 4}) {
    execution how = threads(n_threads);
    how.interrupted = [](void*) -> bool { throw std::out_of_range("no answer"); };
    const auto loop = [&] {
      parallel_for(1 << 30, how,
                   [](std::int64_t, const stop_signal&) { std::this_thread::sleep_for(1ms); });
    };
    CHECK_THROWS_WITH_AS(loop(), "no answer", std::out_of_range);
    CHECK(count_runs(50, n_threads) == std::vector<int>(50, 1));
  }
}

TEST_CASE("an interrupt inside long tasks reaches all threads through the stop signal") {
  for (const int n_threads : {1, 2, 4}) {
    alarm_clock alarm;
    const auto loop = [&] {
      parallel_for(n_threads, alarm.watch(n_threads), [](std::int64_t, const stop_signal& stop) {
        while (!stop.requested()) std::this_thread::sleep_for(100us);
      });
    };
    CHECK_THROWS_AS(loop(), interrupted);
    CHECK(!alarm.foreign);
  }
}

TEST_CASE("an interrupt is noticed while the caller waits for another thread's task") {
  alarm_clock alarm;
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> helped{false};
  const auto give_up = clock_type::now() + 30s;
  const auto loop = [&] {
    parallel_for(2, alarm.watch(2), [&](std::int64_t, const stop_signal& stop) {
      if (std::this_thread::get_id() == caller) {  // leaves the other task to the other thread
        while (!helped && clock_type::now() < give_up) std::this_thread::sleep_for(1ms);
        return;
      }
      helped = true;
      while (!stop.requested()) std::this_thread::sleep_for(100us);
    });
  };
  CHECK_THROWS_AS(loop(), interrupted);
  CHECK(!alarm.foreign);
}

TEST_CASE("a short loop does not ask for interrupts") {
  for (int i = 0; i < 100; ++i) {
    alarm_clock alarm{1000};
    const auto start = clock_type::now();
    parallel_for(4, alarm.watch(2), [](std::int64_t, const stop_signal&) {});
    // Loops may take long when other processes take the core.
    CHECK(alarm.calls <= (clock_type::now() - start) / 20ms);
  }
}

TEST_CASE("a nested loop runs, on the thread of the task that holds it") {
  std::atomic<int> inner{0}, elsewhere{0};
  parallel_for(8, threads(3), [&](std::int64_t, const stop_signal&) {
    const auto outer_thread = std::this_thread::get_id();
    parallel_for(10, threads(3), [&](std::int64_t, const stop_signal&) {
      ++inner;
      elsewhere += std::this_thread::get_id() != outer_thread;
    });
  });
  CHECK(inner == 80);
  CHECK(elsewhere == 0);
}

TEST_CASE("an interrupt of the outer loop stops the nested ones") {
  alarm_clock alarm;
  const auto loop = [&] {
    parallel_for(2, alarm.watch(2), [](std::int64_t, const stop_signal&) {
      parallel_for(1 << 30, threads(2),
                   [](std::int64_t, const stop_signal&) { std::this_thread::sleep_for(1ms); });
    });
  };
  CHECK_THROWS_AS(loop(), interrupted);
  CHECK(!alarm.foreign);
}

TEST_CASE("concurrent calls from several threads all finish") {
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        wrong += count_runs(16, 3) != std::vector<int>(16, 1);
      }
    });
  }
  for (auto& caller : callers) caller.join();
  CHECK(wrong == 0);
}

// On Windows clock() measures wall-clock time.
#if !defined(_WIN32)
TEST_CASE("idle threads sleep") {
  count_runs(64, 4);
  std::this_thread::sleep_for(20ms);
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(200ms);
  CHECK(double(std::clock() - before) / CLOCKS_PER_SEC < 0.1);  // of this process only
}
#endif

#if defined(__linux__)
TEST_CASE("a helper that meets its caller on a CPU stays away from it") {
  cpu_set_t allowed;
  REQUIRE(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  if (CPU_COUNT(&allowed) < 2) return;
  const int here = sched_getcpu();
  cpu_set_t alone;
  CPU_ZERO(&alone);
  CPU_SET(here, &alone);
  REQUIRE(sched_setaffinity(0, sizeof alone, &alone) == 0);
  const std::thread::id caller = std::this_thread::get_id();
  // Each loop sends its helper to the CPU of the caller and then lets it run anywhere again, until
  // one has narrowed its own affinity: Linux may also wake a helper on another CPU, where it stays
  // unchanged.
  cpu_set_t later = allowed;
  for (int loop = 0; loop < 1000 && CPU_COUNT(&later) == CPU_COUNT(&allowed); ++loop) {
    std::atomic<int> arrived{0};
    parallel_for(2, threads(2), [&](std::int64_t, const stop_signal&) {
      if (std::this_thread::get_id() != caller) {
        sched_getaffinity(0, sizeof later, &later);
        sched_setaffinity(0, sizeof alone, &alone);
        sched_setaffinity(0, sizeof allowed, &allowed);
      }
      ++arrived;
      while (arrived < 2) std::this_thread::sleep_for(100us);
    });
  }
  CHECK(CPU_COUNT(&later) == CPU_COUNT(&allowed) - 1);
  CHECK(!CPU_ISSET(here, &later));
  sched_setaffinity(0, sizeof allowed, &allowed);
}
#endif

TEST_CASE("num_threads is set for the process, and refuses less than one") {
  const int before = attnscale::num_threads();
  CHECK(before >= 1);
  attnscale::set_num_threads(3);
  CHECK(attnscale::num_threads() == 3);
  CHECK(attnscale_get_num_threads() == 3);
  CHECK_THROWS_WITH_AS(attnscale::set_num_threads(0), "num_threads must be >= 1, got 0",
                       std::invalid_argument);
  attnscale_set_num_threads(-1);
  CHECK(attnscale::num_threads() == 3);
  attnscale_set_num_threads(before);
  CHECK(attnscale::num_threads() == before);
}

TEST_CASE("a call takes max_threads() at most, whatever num_threads() says") {
  using attnscale::detail::threads_of_call;
  const int most = attnscale::max_threads();
  CHECK(most >= 256);
  CHECK(most >= attnscale::detail::usable_cpus());
  CHECK(threads_of_call(3) == 3);
  CHECK(threads_of_call(most) == most);
  CHECK(threads_of_call(most + 1) == most);
  const int before = attnscale::num_threads();
  attnscale::set_num_threads(2147483647);
  CHECK(attnscale::num_threads() == 2147483647);
  attnscale::set_num_threads(before);
}

TEST_CASE("ATTNSCALE_NUM_THREADS is an integer of at least one") {
  using attnscale::detail::parse_num_threads;
  CHECK(parse_num_threads("1") == 1);
  CHECK(parse_num_threads("12") == 12);
  for (const char* const text : {"0", "-2", "2.5", "four", "3 ", "99999999999"}) {
    const std::string expected =
        "ATTNSCALE_NUM_THREADS must be an integer >= 1, got '" + std::string(text) + "'";
    CHECK_THROWS_WITH_AS(parse_num_threads(text), expected.c_str(), std::runtime_error);
  }
}

TEST_CASE("a cgroup quota counts in whole CPUs, rounded up") {
  using attnscale::detail::quota_cpus;
  CHECK(quota_cpus("200000 100000") == 2);
  CHECK(quota_cpus("150000 100000") == 2);
  CHECK(quota_cpus("50000 100000") == 1);
  CHECK(quota_cpus("1e30 1") == 2147483647);
  for (const char* const none : {"max 100000", "-1 100000", "", "0 0", "nonsense"}) {
    CHECK(quota_cpus(none) == 0);
  }
}

TEST_CASE("the tightest quota of all levels counts, in cgroups of both versions") {
  namespace fs = std::filesystem;
  const fs::path root = fs::temp_directory_path() / ("attnscale-" + std::to_string(getpid()));
  const auto write = [&](const std::string& path, const std::string& text) {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text << '\n';
  };
  const auto limit = [&](const std::string& group, const std::string& quota) {
    write("sys/fs/cgroup/cpu" + group + "/cpu.cfs_quota_us", quota);
    write("sys/fs/cgroup/cpu" + group + "/cpu.cfs_period_us", "100000");
  };
  const auto cpus = [&] { return attnscale::detail::cgroup_cpus(root.string()); };
  CHECK(cpus() == 0);
  write("proc/self/cgroup", "4:cpuset:/other\n3:cpu,cpuacct:/job/step\n0::/");
  CHECK(cpus() == 0);
  limit("", "-1");
  limit("/job", "300000");
  CHECK(cpus() == 3);
  limit("/job/step", "50000");  // Slurm's step within a job
  limit("/other", "10000");
  CHECK(cpus() == 1);
  limit("/job/step", "-1");
  CHECK(cpus() == 3);
  write("sys/fs/cgroup/cpu.max", "200000 100000");
  CHECK(cpus() == 2);
  write("proc/self/cgroup", "nonsense\n3:cpu:/docker/0123\n0::/docker/0123");  // in a container
  limit("", "400000");
  CHECK(cpus() == 2);
  write("sys/fs/cgroup/cpu.max", "max 100000");
  CHECK(cpus() == 4);
  write("sys/fs/cgroup/docker/0123/cpu.max", "100000 100000");
  CHECK(cpus() == 1);
  fs::remove_all(root);
}

}  // namespace test_thread_pool
