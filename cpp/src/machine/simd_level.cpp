// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/simd_level.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "machine/cpu_features.hpp"
#include "machine/dispatch.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace attnscale {
namespace {

using detail::cpu_has;
using detail::level_kernels;

/// A level that the CPU can run, and whether it is then faster than the earlier levels.
struct level {
  const level_kernels* kernels;
  bool (*supported)();
  bool (*faster)();
};

bool always() { return true; }

#if defined(ATTNSCALE_EMULATE_BFLOAT16)
/// For tests: available by name, never chosen by default.
bool never() { return false; }
#endif

#if defined(__x86_64__)

// A build that leaves levels out (ATTNSCALE_SIMD_LEVELS) does not use all of these.
[[maybe_unused]] bool has_avx2() { return cpu_has("AVX2") && cpu_has("FMA") && cpu_has("F16C"); }

[[maybe_unused]] bool has_avx512() {
  return has_avx2() && cpu_has("AVX-512F") && cpu_has("AVX-512CD") && cpu_has("AVX-512DQ") &&
         cpu_has("AVX-512BW") && cpu_has("AVX-512VL");
}

[[maybe_unused]] bool has_avx512_bf16() { return has_avx512() && cpu_has("AVX-512BF16"); }

/// AMD cores multiply pairs of bfloat16 at the rate of one float32 number; Intel cores take twice
/// as long, and have AMX for it.
[[maybe_unused]] bool is_amd() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(0, &eax, &ebx, &ecx, &edx) != 0 && ebx == signature_AMD_ebx;
}

/// Linux gives the AMX registers to a process on request, and then keeps them for its threads and
/// children.
bool may_use_amx() {
#if defined(__linux__)
  constexpr long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

[[maybe_unused]] bool has_amx_bf16() {
  return has_avx512_bf16() && cpu_has("AMX-TILE") && cpu_has("AMX-BF16") && may_use_amx();
}

constexpr level levels[] = {
    // clang-format off
    ATTNSCALE_IF_BASELINE({&detail::baseline_kernels, always, always}, )
#if defined(ATTNSCALE_EMULATE_BFLOAT16)
    {&detail::emulated_avx512_bf16_kernels, has_avx2, never},
    {&detail::emulated_amx_bf16_kernels, has_avx2, never},
#endif
    ATTNSCALE_IF_AVX2({&detail::avx2_kernels, has_avx2, always}, )
    ATTNSCALE_IF_AVX512({&detail::avx512_kernels, has_avx512, always}, )
    ATTNSCALE_IF_AVX512_BF16({&detail::avx512_bf16_kernels, has_avx512_bf16, is_amd}, )
    ATTNSCALE_IF_AMX_BF16({&detail::amx_bf16_kernels, has_amx_bf16, always}, )
    // clang-format on
};
#elif defined(__aarch64__)
constexpr level levels[] = {
#if defined(ATTNSCALE_EMULATE_BFLOAT16)
    {&detail::emulated_avx512_bf16_kernels, always, never},
    {&detail::emulated_amx_bf16_kernels, always, never},
#endif
    {&detail::neon_kernels, always, always}};
#elif defined(__wasm__)
constexpr level levels[] = {{&detail::wasm_kernels, always, always}};
#else
constexpr level levels[] = {{&detail::baseline_kernels, always, always}};
#endif

/// Kernels of a level that this CPU can run; null for an unknown name.
const level_kernels* find(std::string_view name) {
  for (const level& candidate : levels)
    if (name == candidate.kernels->name && candidate.supported()) return candidate.kernels;
  return nullptr;
}

/// The fastest level of this CPU, which may lack all levels of a build for another machine.
const level_kernels& best() {
  const level_kernels* found = nullptr;
  for (const level& candidate : levels)
    if (candidate.supported() && candidate.faster()) found = candidate.kernels;
  if (found != nullptr) return *found;
  std::string built;
  for (const level& each : levels)
    built.append(built.empty() ? "" : ", ").append(each.kernels->name);
  throw std::runtime_error("this CPU has none of the SIMD levels of this build (" + built +
                           "): build attnscale on this machine, or at all levels");
}

std::string refusal(const char* argument, std::string_view name) {
  std::string choices;
  for (const std::string_view each : available_simd_levels())
    choices.append(choices.empty() ? "" : ", ").append(each);
  return std::string(argument) + " must be one of " + choices +
         " (what this build and this CPU have), got '" + std::string(name) + "'";
}

/// The level in use; null: not chosen yet. An atomic instead of a magic static: a process may fork
/// while another thread is choosing, and the guard of a static would then stay locked in the child
/// for ever.
std::atomic<const level_kernels*> chosen{nullptr};

}  // namespace

std::vector<std::string_view> available_simd_levels() {
  std::vector<std::string_view> names;
  for (const level& candidate : levels) {
    if (candidate.supported()) names.emplace_back(candidate.kernels->name);
  }
  return names;
}

std::string_view simd_level() { return detail::active_kernels().name; }

void set_simd_level(std::string_view level) {
  const level_kernels* const table = find(level);
  if (table == nullptr) throw std::invalid_argument(refusal("level", level));
  chosen.store(table, std::memory_order_release);
}

namespace detail {

const level_kernels& kernels_for(const char* requested) {
  const std::string_view name = requested != nullptr ? requested : "";
  if (name.empty()) return best();
  const level_kernels* const table = find(name);
  if (table == nullptr) throw std::runtime_error(refusal("ATTNSCALE_SIMD", name));
  return *table;
}

const level_kernels& active_kernels() {
  const level_kernels* table = chosen.load(std::memory_order_acquire);
  if (table != nullptr) return *table;
  const level_kernels* mine = &kernels_for(std::getenv("ATTNSCALE_SIMD"));
  return chosen.compare_exchange_strong(table, mine) ? *mine : *table;
}

}  // namespace detail
}  // namespace attnscale
