// SPDX-License-Identifier: BSD-3-Clause
//
// Loops on the OpenMP threads of another library: GNU's own, where it is installed, and both
// interfaces over threads of the test.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdarg>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <dlfcn.h>

#include "forked_child.hpp"
#endif

#include "attnscale/threads.hpp"
#include "machine/num_threads.hpp"
#include "machine/openmp_team.hpp"
#include "machine/thread_pool.hpp"

#if defined(__SANITIZE_THREAD__)
#define ATTNSCALE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ATTNSCALE_TSAN 1
#endif
#endif

namespace test_openmp_team {

using attnscale::execution;
using attnscale::interrupted;
using attnscale::detail::openmp_team;
using attnscale::detail::parallel_for;
using attnscale::detail::stop_signal;
using namespace std::chrono_literals;

namespace {

constexpr int size_of_team = 3;

std::mutex mutex;
std::set<std::thread::id> members;     // of the test's team, in its last region
std::atomic<bool> has_own_mode{true};  // whether each member rounded as before after its part
int regions = 0;

void run_region(openmp_team::region* body, void* context, unsigned n) {
  ++regions;
  members = {std::this_thread::get_id()};
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < n; ++i) {
    threads.emplace_back([=] {
      {
        const std::lock_guard lock(mutex);
        members.insert(std::this_thread::get_id());
      }
      std::fesetround(FE_DOWNWARD);
      body(context);
      if (std::fegetround() != FE_DOWNWARD) has_own_mode = false;
    });
  }
  body(context);
  for (auto& each : threads) each.join();
}

int wanted_by_llvm = 0;

void fork_call(void*, int, openmp_team::microtask* task, ...) {
  va_list arguments;
  va_start(arguments, task);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  struct bound {
    void (*task)(int*, int*, void*);  // the type that runtimes call
    void* argument;
  } call{reinterpret_cast<void (*)(int*, int*, void*)>(task), argument};
  run_region(
      [](void* context) {
        const auto& [work, given] = *static_cast<bound*>(context);
        int id = 0;
        work(&id, &id, given);
      },
      &call, static_cast<unsigned>(wanted_by_llvm));
}

openmp_team gnu_team() {
  openmp_team team;
  team.gnu_parallel = [](openmp_team::region* body, void* context, unsigned n, unsigned) {
    run_region(body, context, n);
  };
  team.in_parallel = [] { return 0; };
  team.asked = [] { return size_of_team; };
  team.name = "a test";
  return team;
}

openmp_team llvm_team() {
  openmp_team team = gnu_team();
  team.gnu_parallel = nullptr;
  team.llvm_fork_call = &fork_call;
  team.llvm_push_num_threads = [](void*, int, int n) { wanted_by_llvm = n; };
  team.llvm_global_id = [](void*) { return 0; };
  return team;
}

/// Makes a team the process's while it lives.
struct adopted {
  explicit adopted(const openmp_team& team) { attnscale::detail::adopt_team(team); }
  ~adopted() { attnscale::detail::adopt_team({}); }
  adopted(const adopted&) = delete;
  adopted& operator=(const adopted&) = delete;
};

execution threads(int n) {
  execution how;
  how.num_threads = n;
  return how;
}

/// Threads that take part in a loop whose tasks wait for all of them, for a while.
std::set<std::thread::id> threads_of_loop(int n) {
  std::set<std::thread::id> seen;
  std::mutex own;
  std::atomic<int> here{0};
  parallel_for(n, threads(n), [&](std::int64_t, const stop_signal&) {
    {
      const std::lock_guard lock(own);
      seen.insert(std::this_thread::get_id());
    }
    ++here;
    for (int i = 0; i < 2000 && here < n; ++i) std::this_thread::sleep_for(1ms);
  });
  return seen;
}

}  // namespace

TEST_CASE("a loop runs on the team's threads, by both interfaces") {
  for (const openmp_team& team : {gnu_team(), llvm_team()}) {
    const adopted here(team);
    const auto seen = threads_of_loop(size_of_team);
    CHECK(seen == members);
    CHECK(seen.size() == size_of_team);
    CHECK(threads_of_loop(2).size() == 2);  // in a region of the team's own size
    CHECK(members.size() == size_of_team);
  }
}

TEST_CASE("a loop that wants more threads than the team has runs on the library's own") {
  const adopted here(gnu_team());
  regions = 0;
  CHECK(threads_of_loop(size_of_team + 1).size() == size_of_team + 1);
  CHECK(regions == 0);
}

TEST_CASE("a loop inside a region of the host does not start another") {
  openmp_team busy = gnu_team();
  busy.in_parallel = [] { return 1; };
  const adopted here(busy);
  regions = 0;
  CHECK(threads_of_loop(2).size() == 2);
  CHECK(regions == 0);
}

TEST_CASE("a nested loop runs on the thread of its task") {
  const adopted here(gnu_team());
  std::atomic<int> elsewhere{0};
  parallel_for(4, threads(size_of_team), [&](std::int64_t, const stop_signal&) {
    const auto outer = std::this_thread::get_id();
    parallel_for(4, threads(size_of_team), [&](std::int64_t, const stop_signal&) {
      elsewhere += outer != std::this_thread::get_id();
    });
  });
  CHECK(elsewhere == 0);
}

TEST_CASE("an exception of a task on the team reaches the caller") {
  const adopted here(gnu_team());
  CHECK_THROWS_AS(parallel_for(100, threads(size_of_team),
                               [](std::int64_t task, const stop_signal&) {
                                 if (task == 7) throw std::domain_error("task 7");
                               }),
                  std::domain_error);
}

TEST_CASE("an interrupt is noticed while the caller waits for a task of the team") {
  const adopted here(gnu_team());
  std::atomic<bool> asked{false};
  execution how = threads(2);
  how.context = &asked;
  how.interrupted = [](void* flag) { return static_cast<std::atomic<bool>*>(flag)->load(); };
  const auto caller = std::this_thread::get_id();
  std::atomic<bool> helping{false};
  CHECK_THROWS_AS(parallel_for(2, how,
                               [&](std::int64_t, const stop_signal& stop) {
                                 if (std::this_thread::get_id() == caller) {
                                   while (!helping) std::this_thread::sleep_for(1ms);
                                   asked = true;
                                   return;
                                 }
                                 helping = true;
                                 while (!stop.requested()) std::this_thread::sleep_for(1ms);
                               }),
                  interrupted);
}

TEST_CASE("threads of the team compute in the caller's mode, and have their own again") {
  const adopted here(gnu_team());
  has_own_mode = true;
  std::fesetround(FE_UPWARD);
  std::atomic<int> upward{0}, here_too{0};
  parallel_for(size_of_team, threads(size_of_team), [&](std::int64_t, const stop_signal&) {
    upward += std::fegetround() == FE_UPWARD;
    ++here_too;
    for (int i = 0; i < 2000 && here_too < size_of_team; ++i) std::this_thread::sleep_for(1ms);
  });
  std::fesetround(FE_TONEAREST);
  CHECK(upward == size_of_team);
  CHECK(has_own_mode);
}

TEST_CASE("the default number of threads is at most the team's, unless one is chosen") {
  const int before = attnscale::num_threads();
  openmp_team team = gnu_team();
  team.asked = [] { return 1; };
  {
    const adopted here(team);
    CHECK(attnscale::num_threads() == 1);
    CHECK(attnscale::threads_library() == "a test");
    attnscale::set_num_threads(2);
    CHECK(attnscale::num_threads() == 2);
    attnscale::detail::choose_threads(0);
    CHECK(attnscale::num_threads() == 1);
    attnscale_set_num_threads(3);
    CHECK(attnscale::num_threads() == 3);
    attnscale_set_num_threads(1);  // the default's number, which ends a limit
    CHECK(attnscale::detail::chosen_threads() == 0);
  }
  CHECK(attnscale::num_threads() == before);
  CHECK(attnscale::threads_library().empty());
}

TEST_CASE("a team whose threads come late is avoided for a while") {
  openmp_team slow = gnu_team();
  slow.gnu_parallel = [](openmp_team::region* body, void* context, unsigned n, unsigned) {
    run_region(body, context, n);
    std::this_thread::sleep_for(2ms);
  };
  const adopted here(slow);
  regions = 0;
  for (int i = 0; i < 50; ++i) threads_of_loop(2);
  CHECK(regions >= 1);
  CHECK(regions < 50);
}

TEST_CASE("a library that is not loaded has no team") {
  CHECK(attnscale::use_threads_of("libno_such_library.so").empty());
  CHECK(attnscale::detail::adopted_team() == nullptr);
}

#if defined(__linux__) && !defined(ATTNSCALE_TSAN)

namespace {

/// GNU's runtime, which the compilers of this project install; null where it is absent.
void* gnu_runtime() {
  static void* const found = dlopen("libgomp.so.1", RTLD_LAZY | RTLD_LOCAL);
  return found;
}

int sum_in_parallel() {
  std::atomic<int> sum{0};
  parallel_for(100, threads(2),
               [&](std::int64_t task, const stop_signal&) { sum += static_cast<int>(task); });
  return sum;
}

/// GNU's runtime as the team, with two threads.
openmp_team real_team() {
  openmp_team team = attnscale::detail::openmp_team_of("libgomp.so.1");
  team.asked = [] { return 2; };
  return team;
}

}  // namespace

TEST_CASE("GNU's runtime runs loops on the threads of its own regions") {
  if (gnu_runtime() == nullptr) return;
  const openmp_team team = real_team();
  REQUIRE(team);
  CHECK(team.name.find("libgomp") != std::string::npos);
  static std::set<std::thread::id> own;
  team.run(
      [](void*) {
        const std::lock_guard lock(mutex);
        own.insert(std::this_thread::get_id());
      },
      nullptr, 2);
  const adopted here(team);
  CHECK(threads_of_loop(2) == own);
  CHECK(own.size() == 2);
}

TEST_CASE("a child of a fork has no team, and computes" * doctest::test_suite("fork")) {
  if (gnu_runtime() == nullptr) return;
  const adopted here(real_team());
  CHECK(sum_in_parallel() == 4950);
  CHECK(in_child([] { return sum_in_parallel() == 4950 ? 0 : 1; }) == 0);
  // A team that a bare fork adopts may have lost its threads before.
  CHECK(in_child([] {
          attnscale::detail::adopt_team(real_team());
          return attnscale::detail::can_run_on_team(2) || sum_in_parallel() != 4950 ? 1 : 0;
        }) == 0);
}

TEST_CASE("a fork inside a loop on the team ends the loop in the child by an error" *
          doctest::test_suite("fork")) {
  if (gnu_runtime() == nullptr) return;
  const adopted here(real_team());
  static pid_t child;
  child = -1;
  execution how = threads(2);
  how.interrupted = [](void*) {
    if (child < 0) {
      child = fork();
      if (child == 0) alarm(10);
    }
    return false;
  };
  try {
    parallel_for(200, how,
                 [](std::int64_t, const stop_signal&) { std::this_thread::sleep_for(1ms); });
  } catch (const std::runtime_error&) {
    _exit(child == 0 && sum_in_parallel() == 4950 ? 7 : 8);
  }
  if (child == 0) _exit(9);
  REQUIRE(child > 0);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
}

#endif

}  // namespace test_openmp_team
