// SPDX-License-Identifier: BSD-3-Clause
//
// Loops on the OpenMP threads of another library in this process. Its threads wait awake for some
// milliseconds after each of its loops: a second pool beside them gets half of the CPUs.
#pragma once

#include <chrono>
#include <string>

namespace attnscale::detail {

class job;

/// Functions of an OpenMP runtime, found by name in loaded libraries and never linked.
struct openmp_team {
  using region = void(void* context);
  using microtask = void(int* global_id, int* team_id, ...);

  // Interface of GNU's compilers. Intel's and LLVM's runtimes have it, too, except on macOS.
  void (*gnu_parallel)(region*, void* context, unsigned n_threads, unsigned flags) = nullptr;

  // Interface of LLVM's compilers.
  void (*llvm_fork_call)(void* place, int n_arguments, microtask*, ...) = nullptr;
  void (*llvm_push_num_threads)(void* place, int global_id, int n_threads) = nullptr;
  int (*llvm_global_id)(void* place) = nullptr;

  int (*in_parallel)() = nullptr;  ///< nonzero inside a parallel region
  int (*asked)() = nullptr;        ///< number of threads of the next region of this thread
  std::string name;                ///< of the library, for people

  explicit operator bool() const { return in_parallel && asked && (gnu_parallel || has_llvm()); }

  /// Calls body(context) on n threads, among them the caller, and waits for all.
  void run(region* body, void* context, int n_threads) const;

 private:
  bool has_llvm() const { return llvm_fork_call && llvm_push_num_threads && llvm_global_id; }
};

/// Runtime that serves a loaded library, named as the loader knows it; empty if the library or its
/// runtime is not loaded, or the system has no such loader.
openmp_team openmp_team_of(const char* library);

/// Makes this the team of the process, which runs its loops from now on; for tests, also none.
void adopt_team(const openmp_team& team);

/// Team of the process; null if there is none.
const openmp_team* adopted_team();

/// Time that threads of OpenMP runtimes wait awake, at least: GNU's wait for 300,000 pauses, LLVM's
/// for 200 ms.
inline constexpr std::chrono::microseconds team_spin_time{2000};

/// Whether this thread can run a loop of so many threads on the team. In the child of a fork, the
/// team's threads do not exist, and its runtime would wait for them forever.
bool can_run_on_team(int n_threads);

/// Runs the job on the team: the caller and up to `helpers` other threads work on it.
void run_on_team(job& work, int helpers);

}  // namespace attnscale::detail
