// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <type_traits>

#include "attnscale/problem.hpp"
#include "kernels/stop_signal.hpp"

namespace attnscale::detail {

/// One parallel loop: body(context, task, stop) runs once for each task in [0, n_tasks).
struct parallel_loop {
  std::int64_t n_tasks;
  void (*body)(void* context, std::int64_t task, const stop_signal& stop);
  void* context;
};

/// Runs the loop on at most `how.num_threads` threads (0: the default) and at most max_threads(),
/// including the caller; an atomic counter hands out tasks in order. The first exception of a body
/// or of `how.interrupted` ends the loop and is rethrown here; an interrupt throws
/// attnscale::interrupted. Nested and concurrent calls are safe: a call that finds the workers busy
/// runs on its own thread.
void run_parallel(const parallel_loop& loop, const execution& how);

/// Number of threads requested for a call, which may be more than it gets.
int asked_threads(const execution& how);

/// Number of blocks of up to `size` items in n items.
constexpr std::int64_t blocks_of(std::int64_t n, std::int64_t size) {
  return n / size + (n % size != 0);
}

/// Runs the loop for a callable: body(task, stop).
template <class Body>
void parallel_for(std::int64_t n_tasks, const execution& how, Body&& body) {
  auto call = [](void* context, std::int64_t task, const stop_signal& stop) {
    (*static_cast<std::remove_reference_t<Body>*>(context))(task, stop);
  };
  run_parallel({n_tasks, call, &body}, how);
}

}  // namespace attnscale::detail
