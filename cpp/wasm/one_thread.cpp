// SPDX-License-Identifier: BSD-3-Clause
//
// thread_pool.cpp and num_threads.cpp for a system without threads: each loop runs on its caller.
#include <exception>

#include "attnscale/detail/refuse.hpp"
#include "attnscale/threads.hpp"
#include "machine/num_threads.hpp"
#include "machine/thread_cost.hpp"
#include "machine/thread_pool.hpp"

namespace attnscale {

int num_threads() { return 1; }
int max_threads() { return 1; }
void set_num_threads(int n) { detail::check_at_least("num_threads", n, 1); }
std::string use_threads_of(const std::string&) { return ""; }
std::string threads_library() { return ""; }

namespace detail {

int threads_of_call(int) { return 1; }
int asked_threads(const execution&) { return 1; }

execution one_thread_if_short(const execution& how, double) {
  check_threads(how.num_threads);
  return how;
}

void run_parallel(const parallel_loop& loop, const execution& how) {
  check_threads(how.num_threads);
  bool stopped = false;
  std::exception_ptr thrown;
  const auto ask = [&]() noexcept {
    try {
      stopped = stopped || (how.interrupted && how.interrupted(how.context));
    } catch (...) {
      thrown = std::current_exception();
      stopped = true;
    }
    return stopped;
  };
  const stop_signal signal{
      [](const void* state) noexcept { return (*static_cast<decltype(ask)*>(state))(); }, &ask};
  for (std::int64_t task = 0; task < loop.n_tasks && !signal.requested(); ++task)
    loop.body(loop.context, task, signal);
  if (thrown) std::rethrow_exception(thrown);
  if (stopped) throw interrupted();
}

}  // namespace detail
}  // namespace attnscale
