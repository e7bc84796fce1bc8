// SPDX-License-Identifier: BSD-3-Clause
#include "machine/thread_pool.hpp"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "attnscale/detail/refuse.hpp"
#include "attnscale/threads.hpp"
#include "machine/num_threads.hpp"
#include "machine/thread_cost.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

namespace attnscale::detail {
namespace {

using clock = std::chrono::steady_clock;

// Ctrl-C has to be answered within 0.2 s; the check takes the GIL, which other threads may need.
constexpr auto poll_interval = std::chrono::milliseconds(25);

// Waking a sleeping thread takes 20 to 30 us, as long as a small call. An idle thread looks for
// work during this time before it sleeps: two threads then share 20 us of work in 11.4 us when
// calls follow each other (27 us without), 100 us in 51 us (93 us without).
constexpr auto spin_time = std::chrono::microseconds(100);

// So an isolated call wakes threads if it takes `enough_to_wake` or more. A shorter one does if it
// soon follows another call: the threads are then awake, or stay awake for the next calls.
constexpr double enough_to_wake = 80e3;  // ns
constexpr double enough_to_share = 8e3;

/// Expected end of the last call that was long enough to share, in ticks of the clock.
std::atomic<clock::rep> last_end{0};

void pause() {
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

/// The CPU of this thread, -1 if the system does not say.
int current_cpu() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

/// CPUs of a helper: all that the system allows, except the CPU of the last caller that it met on
/// its own CPU.
///
/// Linux often wakes a thread on the CPU of its waker, and may leave both there, call after call:
/// the loops take twice their time beside an idle core. So a helper that finds itself on its
/// caller's CPU moves, and does not return: otherwise the next call would wake it there again.
class whereabouts {
 public:
  void leave([[maybe_unused]] int cpu) {
#if defined(__linux__)
    cpu_set_t now;
    if (sched_getaffinity(0, sizeof now, &now) != 0) return;
    // A set that this object did not make was set by the user.
    if (!narrowed_ || !CPU_EQUAL(&now, &mine_)) allowed_ = now;
    mine_ = allowed_;
    CPU_CLR(cpu, &mine_);
    narrowed_ = CPU_COUNT(&mine_) > 0 && sched_setaffinity(0, sizeof mine_, &mine_) == 0;
#endif
  }

 private:
#if defined(__linux__)
  cpu_set_t allowed_;
  cpu_set_t mine_;
  bool narrowed_ = false;
#endif
};

// Number of forks between this process and the one that loaded the library: threads of an earlier
// count do not exist here.
std::atomic<unsigned> forks{0};

// Signal of the task that this thread runs: a nested loop stops with the enclosing one.
thread_local const stop_signal* enclosing = nullptr;

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

/// Threads that sleep until a job is offered. One job at a time; never destroyed, because its
/// threads may still sleep in it when the process ends.
class pool {
 public:
  void run(job& work, int helpers) {
    const unsigned forks_before = forks.load();
    start_threads(helpers);
    work.share();
    offer(work, helpers);
    work.work_as_caller();
    withdraw(work, forks_before);
  }

 private:
  void start_threads(int wanted);
  void serve() noexcept;
  void await_offer(std::unique_lock<std::mutex>& lock, std::uint64_t seen,
                   whereabouts& place) noexcept;
  void offer(job& work, int helpers);
  void withdraw(job& work, unsigned forks_before);

  std::mutex mutex_;
  std::condition_variable offered_;
  std::condition_variable left_;
  // Written under the mutex; spinning threads also read the atomic ones.
  job* current_ = nullptr;
  std::atomic<std::uint64_t> offers_{0};  // jobs so far: a thread joins each at most once
  int places_ = 0;                        // helpers that may still join the current job
  int cpu_ = -1;                          // of the thread that offered it
  std::atomic<int> inside_{0};            // number of helpers working on it
  int threads_ = 0;
};

#if defined(_WIN32)
/// No signals to block: on Windows, Ctrl-C runs the console's handlers on a separate thread. A loop
/// learns of it by polling its check, as elsewhere.
class signals_blocked {
 public:
  signals_blocked() {}
};
#else
/// During its lifetime, a new thread inherits a mask without asynchronous signals: those belong to
/// the threads of the program. Faults stay visible to crash handlers.
class signals_blocked {
 public:
  signals_blocked() {
    sigset_t mask;
    sigfillset(&mask);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) {
      sigdelset(&mask, fault);
    }
    pthread_sigmask(SIG_SETMASK, &mask, &before_);
  }
  ~signals_blocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  signals_blocked(const signals_blocked&) = delete;
  signals_blocked& operator=(const signals_blocked&) = delete;

 private:
  sigset_t before_;
};
#endif

// A system that refuses more threads is not an error: the loop then runs on the existing ones.
void pool::start_threads(int wanted) {
  if (threads_ >= wanted) return;
  const signals_blocked blocked;
  try {
    for (; threads_ < wanted; ++threads_) std::thread([this] { serve(); }).detach();
  } catch (const std::system_error&) {
    return;
  }
}

void pool::offer(job& work, int helpers) {
  {
    const std::lock_guard lock(mutex_);
    current_ = &work;
    cpu_ = current_cpu();
    places_ = helpers;
    ++offers_;
  }
  if (helpers >= threads_) {
    offered_.notify_all();
  } else {
    for (int i = 0; i < helpers; ++i) offered_.notify_one();
  }
}

// Closes the job and waits for the helpers that joined. A fork inside the loop (a signal handler in
// poll() may do that) leaves a child without them and with their tasks half done: that child
// touches neither the mutex nor the counts, which may be in any state.
void pool::withdraw(job& work, unsigned forks_before) {
  const auto forked = [&] { return forks.load() != forks_before; };
  const auto all_left = [this] { return inside_ == 0; };
  if (!forked()) {
    const std::lock_guard lock(mutex_);
    current_ = nullptr;
  }
  while (!forked()) {
    if (spin_until(all_left)) return;
    {
      std::unique_lock lock(mutex_);
      if (left_.wait_for(lock, poll_interval, all_left)) return;
    }
    work.poll();
  }
  work.lose_helpers();
}

/// Returns, with the lock, when there is a job to join. A helper that was woken on its caller's CPU
/// often comes too late for that job; it moves all the same, for the next one.
void pool::await_offer(std::unique_lock<std::mutex>& lock, std::uint64_t seen,
                       whereabouts& place) noexcept {
  while (true) {
    if (const int cpu = cpu_; cpu >= 0 && current_cpu() == cpu) {
      lock.unlock();
      place.leave(cpu);
      lock.lock();
    }
    if (current_ != nullptr && places_ > 0 && offers_ != seen) return;
    offered_.wait(lock);
  }
}

void pool::serve() noexcept {
  whereabouts place;
  std::uint64_t seen = 0;
  while (true) {
    spin_until([&] { return offers_ != seen; });
    std::unique_lock lock(mutex_);
    await_offer(lock, seen, place);
    seen = offers_;
    --places_;
    ++inside_;
    job* const work = current_;
    lock.unlock();
    work->work_as_helper();
    lock.lock();
    if (--inside_ == 0) left_.notify_one();
  }
}

std::atomic<bool> busy{false};         // a thread runs a job on the pool
std::atomic<pool*> the_pool{nullptr};  // used only by the thread that set busy, and after a fork

#if !defined(_WIN32)
// The child of a fork has one thread and locks in an unknown state: it drops the pool.
[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, [] {
  forks.fetch_add(1);
  the_pool.store(nullptr);
  busy.store(false);
});
#endif

pool& shared_pool() {
  if (the_pool.load() == nullptr) the_pool.store(new pool);
  return *the_pool.load();
}

}  // namespace

int asked_threads(const execution& how) {
  return how.num_threads > 0 ? how.num_threads : num_threads();
}

execution one_thread_if_short(const execution& how, double nanoseconds) {
  check_threads(how.num_threads);
  execution alone = how;
  alone.num_threads = 1;
  if (nanoseconds < enough_to_share) return alone;
  if (asked_threads(how) == 1) return how;
  const clock::time_point now = clock::now();
  const auto takes =
      std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(nanoseconds, 1e9)));
  const clock::duration before(last_end.exchange((now + takes).time_since_epoch().count()));
  const bool follows = now.time_since_epoch() - before < spin_time;
  return follows || nanoseconds >= enough_to_wake ? how : alone;
}

void run_parallel(const parallel_loop& loop, const execution& how) {
  check_threads(how.num_threads);
  if (loop.n_tasks <= 0) return;
  const std::int64_t asked = threads_of_call(asked_threads(how));
  const int helpers = static_cast<int>(std::min(asked, loop.n_tasks)) - 1;
  job work(loop, how);
  if (helpers > 0 && !busy.exchange(true)) {
    try {
      shared_pool().run(work, helpers);
    } catch (...) {
      busy.store(false);
      throw;
    }
    busy.store(false);
  } else {
    work.work_as_caller();
  }
  work.rethrow();
}

}  // namespace attnscale::detail
