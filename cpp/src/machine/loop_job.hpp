// SPDX-License-Identifier: BSD-3-Clause
//
// State of a parallel loop that its threads share, whoever their owner is.
#pragma once

#include <atomic>
#include <cfenv>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <utility>

#include "machine/thread_pool.hpp"

namespace attnscale::detail {

using clock = std::chrono::steady_clock;

// Ctrl-C has to be answered within 0.2 s; the check takes the GIL, which other threads may need.
inline constexpr auto poll_interval = std::chrono::milliseconds(25);

// Waking a sleeping thread takes 20 to 30 us, as long as a small call. An idle thread looks for
// work during this time before it sleeps: two threads then share 20 us of work in 11.4 us when
// calls follow each other (27 us without), 100 us in 51 us (93 us without).
inline constexpr auto spin_time = std::chrono::microseconds(100);

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class Condition>
bool spin_until(Condition&& reached) {
  const auto end = clock::now() + spin_time;
  do {
    for (int i = 0; i < 32; ++i) {
      if (reached()) return true;
      pause();
    }
  } while (clock::now() < end);
  return false;
}

// Number of forks between this process and the one that loaded the library: threads of an earlier
// count do not exist here.
inline std::atomic<unsigned> forks{0};

// Signal of the task that this thread runs: a nested loop stops with the enclosing one.
inline thread_local const stop_signal* enclosing = nullptr;

/// State that the threads of one loop share.
class job {
 public:
  job(const parallel_loop& loop, const execution& how) : loop_(loop), how_(how), outer_(enclosing) {
    if (how_.interrupted != nullptr) next_poll_ = clock::now() + poll_interval;
  }

  void work_as_caller() noexcept { work({ask_caller, this}); }
  void work_as_helper() noexcept {
    std::fesetenv(&arithmetic_);
    work({ask_helper, this});
  }

  /// Copies the caller's floating-point environment: other threads (which do not exist in the child
  /// of a fork) round, and treat denormal numbers, as the calling thread does, so that results do
  /// not depend on their number.
  void share() {
    shared_ = true;
    std::fegetenv(&arithmetic_);
  }

  /// Runs the user's check when it is due. Only on the calling thread.
  void poll() noexcept {
    if (shared_ && forks.load() != forks_) lose_helpers();
    if (outer_ != nullptr && outer_->requested()) interrupt();
    if (how_.interrupted == nullptr || stop_.load(std::memory_order_relaxed)) return;
    const auto now = clock::now();
    if (now < next_poll_) return;
    next_poll_ = now + poll_interval;
    // Kernels that poll have no exceptions: an exception of the check waits until all threads have
    // left.
    try {
      if (how_.interrupted(how_.context)) interrupt();
    } catch (...) {
      fail(std::current_exception());
    }
  }

  /// Handles a fork inside the loop, in the child: tasks of other threads are half done, and stay
  /// so.
  void lose_helpers() noexcept {
    fail(std::make_exception_ptr(std::runtime_error(
        "the process forked inside a parallel loop: its child cannot finish it")));
  }

  void fail(std::exception_ptr error) noexcept {
    if (!failed_.exchange(true)) error_ = std::move(error);
    stop_.store(true, std::memory_order_relaxed);
  }

  /// Called after the last thread has left.
  void rethrow() const {
    if (failed_.load(std::memory_order_relaxed)) std::rethrow_exception(error_);
  }

 private:
  static bool ask_helper(const void* state) noexcept {
    return static_cast<const job*>(state)->stop_.load(std::memory_order_relaxed);
  }

  static bool ask_caller(const void* state) noexcept {
    const_cast<job*>(static_cast<const job*>(state))->poll();
    return ask_helper(state);
  }

  void interrupt() noexcept { fail(std::make_exception_ptr(interrupted())); }

  void work(const stop_signal& signal) noexcept {
    const stop_signal* const before = std::exchange(enclosing, &signal);
    try {
      while (!signal.requested()) {
        const std::int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
        if (task >= loop_.n_tasks) break;
        loop_.body(loop_.context, task, signal);
      }
    } catch (...) {
      fail(std::current_exception());
    }
    enclosing = before;
  }

  const parallel_loop& loop_;
  const execution& how_;
  const stop_signal* outer_;
  const unsigned forks_ = forks.load();
  bool shared_ = false;
  std::fenv_t arithmetic_;  // of the caller, if threads share the loop
  std::atomic<std::int64_t> next_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
  clock::time_point next_poll_;
};

}  // namespace attnscale::detail
