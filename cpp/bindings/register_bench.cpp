// SPDX-License-Identifier: BSD-3-Clause
//
// Peak rates for `make bench`, measured by threads in many small tasks, like attention, so that a
// busy machine slows both alike. Python measures the time.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "arrays.hpp"
#include "kernels/level.hpp"
#include "machine/thread_pool.hpp"

namespace attnscale::bindings {
namespace {

using detail::active_kernels;
using detail::level_kernels;
using detail::stop_signal;

/// Runs n_tasks times `rounds` rounds of multiply-adds in registers; returns the number of
/// operations.
double run_fma(std::int64_t n_tasks, std::int64_t rounds, bool wide, int num_threads) {
  const level_kernels& table = active_kernels();
  const auto work = (wide ? table.float64 : table.float32).fma_peak;
  std::atomic<double> operations{0};
  run_released(num_threads, [&](const execution& how) {
    detail::parallel_for(n_tasks, how, [&](std::int64_t, const stop_signal&) {
      double sink;
      operations.fetch_add(work(rounds, &sink), std::memory_order_relaxed);
    });
  });
  return operations;
}

/// Reads a C-contiguous array from its first cache line on; returns the number of bytes.
std::int64_t read_memory(const py::array& array, int num_threads) {
  constexpr std::size_t line = 64, step = 1024, chunk = std::size_t{1} << 20;
  const auto address = reinterpret_cast<std::uintptr_t>(array.data());
  const std::size_t skipped = (line - address % line) % line;
  const auto size = static_cast<std::size_t>(array.nbytes());
  const std::size_t bytes = size < skipped ? 0 : (size - skipped) / step * step;
  const char* const first = static_cast<const char*>(array.data()) + skipped;
  const auto n_tasks = static_cast<std::int64_t>((bytes + chunk - 1) / chunk);
  run_released(num_threads, [&](const execution& how) {
    detail::parallel_for(n_tasks, how, [&](std::int64_t task, const stop_signal&) {
      const std::size_t begin = static_cast<std::size_t>(task) * chunk;
      active_kernels().random.read_memory(first + begin, std::min(chunk, bytes - begin));
    });
  });
  return static_cast<std::int64_t>(bytes);
}

}  // namespace

void register_bench(py::module_& module) {
  module.def("run_fma", &run_fma);
  module.def("read_memory", &read_memory);
}

}  // namespace attnscale::bindings
