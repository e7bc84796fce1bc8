// SPDX-License-Identifier: BSD-3-Clause
#include "machine/openmp_team.hpp"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <csetjmp>
#include <fstream>
#include <list>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>

#include "machine/loop_job.hpp"

#if defined(__linux__) || defined(__APPLE__)
#include <dlfcn.h>
#define ATTNSCALE_FINDS_LIBRARIES 1
#endif

namespace attnscale::detail {
namespace {

/// Source position in the form of LLVM's interface.
struct llvm_place {
  int reserved = 0;
  int flags = 2;  // a call in LLVM's own interface
  int more_reserved[2] = {0, 0};
  const char* text = ";attnscale;parallel_for;0;0;;";
};

llvm_place place_of_calls;

struct region_call {
  openmp_team::region* body;
  void* context;
};

void call_region(int*, int*, void* argument) {
  const region_call& call = *static_cast<region_call*>(argument);
  call.body(call.context);
}

std::atomic<const openmp_team*> the_team{nullptr};
std::atomic<unsigned> forks_at_adoption{0};

/// Whether this process is a fork that has not executed a program since: its runtime may have had
/// threads in the parent.
bool is_bare_fork() {
#if defined(__linux__)
  constexpr unsigned long forked_without_exec = 0x40;  // PF_FORKNOEXEC
  std::string text;
  std::ifstream status("/proc/self/stat");
  std::getline(status, text);
  // The second field is the program's name in brackets, which may contain anything.
  std::istringstream fields(text.substr(std::min(text.rfind(')') + 1, text.size())));
  std::string skipped;
  for (int field = 3; field < 9; ++field) fields >> skipped;
  unsigned long flags = 0;
  return (fields >> flags) && (flags & forked_without_exec) != 0;
#else
  return false;
#endif
}

/// Times to avoid the team because its threads come late.
///
/// A region begins and ends when all threads of the team are there. Beside another busy process,
/// one of them may wait for its CPU, for some milliseconds: each region then takes as long. The
/// library's own helpers are not awaited before they join. So calls avoid a late team for a while,
/// which doubles each time that the team is late again.
class lateness {
 public:
  bool avoids() const { return clock::now().time_since_epoch().count() < until_.load(); }

  /// Takes notice of a region that the team held up for so long.
  void note(clock::duration held_up) {
    if (held_up < late) {
      pause_.store(first_pause.count(), std::memory_order_relaxed);
      return;
    }
    const clock::duration pause(pause_.load(std::memory_order_relaxed));
    until_.store((clock::now() + pause).time_since_epoch().count());
    pause_.store(std::min<clock::rep>((2 * pause).count(), last_pause.count()));
  }

  void forget() {
    until_.store(0);
    pause_.store(first_pause.count());
  }

 private:
  // Waking a team that sleeps takes 20 to 100 us.
  static constexpr clock::duration late = std::chrono::microseconds(500);
  static constexpr clock::duration first_pause = std::chrono::milliseconds(50);
  static constexpr clock::duration last_pause = std::chrono::milliseconds(1600);

  std::atomic<clock::rep> until_{0};  // ticks of the clock
  std::atomic<clock::rep> pause_{first_pause.count()};
};

lateness team_lateness;

/// A job, as the threads of a team see it.
struct team_job {
  job& work;
  std::atomic<int> places;  // helpers that may still join
  std::atomic<int> inside{0};
  const std::thread::id caller = std::this_thread::get_id();
  const unsigned forks_before = forks.load();
  clock::time_point began{}, ended{};  // of the caller's part
  std::jmp_buf out = {};

  bool forked() const { return forks.load() != forks_before; }

  void help() {
    if (places.fetch_sub(1, std::memory_order_relaxed) <= 0) return;
    std::fenv_t own;
    std::fegetenv(&own);
    inside.fetch_add(1);
    work.work_as_helper();
    inside.fetch_sub(1);
    std::fesetenv(&own);
  }

  /// Waits for the helpers here, where Ctrl-C is answered; the runtime would wait without it.
  void await_helpers() {
    const auto all_left = [this] { return inside.load() == 0; };
    while (!forked() && !spin_until(all_left)) {
      std::this_thread::sleep_for(spin_time);
      work.poll();
    }
  }
};

void take_part(void* context) {
  team_job& shared = *static_cast<team_job*>(context);
  if (std::this_thread::get_id() != shared.caller) {
    shared.help();
    return;
  }
  shared.began = clock::now();
  shared.work.work_as_caller();
  shared.await_helpers();
  shared.ended = clock::now();
  // The child of a fork leaves the region past its end, where the runtime waits for all threads.
  if (shared.forked()) std::longjmp(shared.out, 1);  // NOLINT(cert-err52-cpp)
}

#if defined(ATTNSCALE_FINDS_LIBRARIES)
template <class Function>
void look_up(void* library, const char* name, Function*& found) {
  found = reinterpret_cast<Function*>(dlsym(library, name));
}

/// Path of the library that holds this function.
std::string library_of(void* function) {
  Dl_info info;
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}
#endif

}  // namespace

void openmp_team::run(region* body, void* context, int n_threads) const {
  if (gnu_parallel != nullptr) {
    gnu_parallel(body, context, static_cast<unsigned>(n_threads), 0);
    return;
  }
  region_call call{body, context};
  llvm_push_num_threads(&place_of_calls, llvm_global_id(&place_of_calls), n_threads);
  llvm_fork_call(&place_of_calls, 1, reinterpret_cast<microtask*>(&call_region), &call);
}

openmp_team openmp_team_of([[maybe_unused]] const char* library) {
  openmp_team team;
#if defined(ATTNSCALE_FINDS_LIBRARIES)
  void* const loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  if (loaded == nullptr) return team;
  // In the order in which the library itself finds them: several runtimes may be loaded.
  look_up(loaded, "GOMP_parallel", team.gnu_parallel);
  look_up(loaded, "__kmpc_fork_call", team.llvm_fork_call);
  look_up(loaded, "__kmpc_push_num_threads", team.llvm_push_num_threads);
  look_up(loaded, "__kmpc_global_thread_num", team.llvm_global_id);
  look_up(loaded, "omp_in_parallel", team.in_parallel);
  look_up(loaded, "_ZN2at15get_num_threadsEv", team.asked);  // at::get_num_threads() of PyTorch
  if (team.asked == nullptr) look_up(loaded, "omp_get_max_threads", team.asked);
  if (team) team.name = library_of(reinterpret_cast<void*>(team.in_parallel));
  dlclose(loaded);  // the program keeps it
#endif
  return team;
}

void adopt_team(const openmp_team& team) {
  // All of them are kept: a call of another thread may use the last one.
  static std::mutex mutex;
  static auto* const teams = new std::list<openmp_team>;
  const std::lock_guard lock(mutex);
  forks_at_adoption.store(is_bare_fork() ? forks.load() - 1 : forks.load());
  team_lateness.forget();
  the_team.store(team ? &teams->emplace_back(team) : nullptr);
}

const openmp_team* adopted_team() { return the_team.load(std::memory_order_acquire); }

bool can_run_on_team(int n_threads) {
  const openmp_team* const team = adopted_team();
  return team != nullptr && forks.load() == forks_at_adoption.load() &&
         n_threads <= team->asked() && team->in_parallel() == 0 && !team_lateness.avoids();
}

void run_on_team(job& work, int helpers) {
  const openmp_team& team = *adopted_team();
  team_job shared{work, helpers};
  work.share();
  // Always the host's own number: a runtime that is asked for another one ends its threads and
  // starts others.
  if (setjmp(shared.out) == 0) {  // NOLINT(cert-err52-cpp)
    const clock::time_point start = clock::now();
    team.run(&take_part, &shared, team.asked());
    team_lateness.note((shared.began - start) + (clock::now() - shared.ended));
  } else {
    work.lose_helpers();
  }
}

}  // namespace attnscale::detail
