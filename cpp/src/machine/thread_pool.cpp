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
#include "machine/loop_job.hpp"
#include "machine/num_threads.hpp"
#include "machine/openmp_team.hpp"
#include "machine/thread_cost.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

namespace attnscale::detail {
namespace {

// So an isolated call wakes threads if it takes `enough_to_wake` or more. A shorter one does if it
// soon follows another call: the threads are then awake, or stay awake for the next calls.
constexpr double enough_to_wake = 80e3;  // ns
constexpr double enough_to_share = 8e3;

/// Expected end of the last call that was long enough to share, in ticks of the clock.
std::atomic<clock::rep> last_end{0};

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

void run_on_threads(job& work, int helpers) {
  can_run_on_team(helpers + 1) ? run_on_team(work, helpers) : shared_pool().run(work, helpers);
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
  const auto awake = can_run_on_team(asked_threads(how)) ? team_spin_time : spin_time;
  const bool follows = now.time_since_epoch() - before < awake;
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
      run_on_threads(work, helpers);
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
