// SPDX-License-Identifier: BSD-3-Clause
//
// fork() and the thread pool: a child has one thread and must neither hang nor crash. Windows has
// no fork().
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "attnscale/attention_gradients.hpp"
#include "attnscale/threads.hpp"
#include "compare.hpp"
#include "forked_child.hpp"
#include "machine/thread_pool.hpp"

namespace test_fork {

using attnscale::execution;
using attnscale::detail::parallel_for;
using attnscale::detail::stop_signal;
using namespace std::chrono_literals;

namespace {

enum child_answer : int { good = 0, wrong = 1 };

int sum_in_parallel(int n_threads) {
  execution how;
  how.num_threads = n_threads;
  std::atomic<int> sum{0};
  parallel_for(100, how, [&](std::int64_t task, const stop_signal&) { sum += int(task); });
  return sum;
}

/// Number of threads that take part in a loop whose tasks wait for all of them, for a while.
std::size_t threads_used(int n_threads) {
  execution how;
  how.num_threads = n_threads;
  std::mutex mutex;
  std::set<std::thread::id> seen;
  const auto end = std::chrono::steady_clock::now() + 5s;
  const auto joined = [&](bool insert) {
    const std::lock_guard lock(mutex);
    if (insert) seen.insert(std::this_thread::get_id());
    return seen.size();
  };
  parallel_for(30, how, [&](std::int64_t, const stop_signal&) {
    joined(true);
    while (joined(false) < static_cast<std::size_t>(n_threads) &&
           std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(1ms);
  });
  return seen.size();
}

int child_sums() { return sum_in_parallel(3) == 4950 && sum_in_parallel(2) == 4950 ? good : wrong; }

}  // namespace

TEST_SUITE_BEGIN("fork");

TEST_CASE("a child of a process whose pool is idle has a pool of its own") {
  REQUIRE(sum_in_parallel(3) == 4950);
  for (int i = 0; i < 20; ++i) REQUIRE(in_child(child_sums) == good);
  CHECK(in_child([] { return in_child(child_sums); }) == good);
  CHECK(sum_in_parallel(3) == 4950);
}

TEST_CASE("a child that is forked while another thread is in a loop has a pool of its own") {
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done) sum_in_parallel(3);
  });
  int bad = 0;
  for (int i = 0; i < 100; ++i) bad += in_child(child_sums) != good;
  for (int i = 0; i < 20; ++i)
    bad += in_child([] { return threads_used(3) == 3 ? good : wrong; }) != good;
  done = true;
  other.join();
  CHECK(bad == 0);
  CHECK(sum_in_parallel(3) == 4950);
}

TEST_CASE("a fork inside a loop: the parent finishes it, the child gets an error and goes on") {
  struct forker {
    pid_t child = -1;
  } context;
  execution how;
  how.num_threads = 2;
  how.context = &context;
  how.interrupted = [](void* self) {
    auto& me = *static_cast<forker*>(self);
    if (me.child != -1) return false;
    me.child = fork();
    if (me.child == 0) alarm(10);  // once: a child that polls for ever must not postpone it
    return false;
  };
  std::string message;
  try {
    parallel_for(40, how,
                 [](std::int64_t, const stop_signal&) { std::this_thread::sleep_for(5ms); });
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  if (context.child == 0) {
    _exit(message.find("forked inside a parallel loop") != std::string::npos ? child_sums()
                                                                             : wrong);
  }
  int status = 0;
  REQUIRE(waitpid(context.child, &status, 0) == context.child);
  CHECK(message == "");
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == good);
}

// The child's blocks would wait for blocks of threads that it does not have.
TEST_CASE("gradients: a child of a fork inside the call does not wait for ever") {
  struct forker {
    pid_t child = -1;
    bool ask() {
      if (child == -1) child = fork();
      if (child == 0) alarm(30);
      return false;
    }
    [[nodiscard]] bool forked() const { return child != -1; }
  } once;
  const attnscale::attention_options options{.num_threads = 3,
                                             .interrupted = [&] { return once.ask(); }};
  // The faster the machine, the longer a call must be for a poll to happen in it.
  for (std::size_t n = 1000; !once.forked(); n *= 2) {
    const auto q = testing::normal<float>({n, 64}, 1), g = testing::normal<float>({n, 64}, 4);
    try {
      attnscale::attention_gradients(q, q, q, g, options);
    } catch (const std::runtime_error&) {
      if (once.child == 0) _exit(0);
      throw;
    }
  }
  if (once.child == 0) _exit(1);
  REQUIRE(once.child > 0);
  int status = 0;
  REQUIRE(waitpid(once.child, &status, 0) == once.child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

#if defined(__linux__)
TEST_CASE("a call that asks for thousands of threads starts max_threads() at most") {
  // In a child, so that the started threads stay in its own pool.
  CHECK(in_child([] {
          execution how;
          how.num_threads = 3000;
          parallel_for(3000, how, [](std::int64_t, const stop_signal&) {});
          std::ptrdiff_t threads = 0;
          for ([[maybe_unused]] const auto& each :
               std::filesystem::directory_iterator("/proc/self/task"))
            ++threads;
          return threads > 100 && threads <= attnscale::max_threads() ? good : wrong;
        }) == good);
}
#endif

TEST_SUITE_END();

}  // namespace test_fork
