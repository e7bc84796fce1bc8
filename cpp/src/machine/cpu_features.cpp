// SPDX-License-Identifier: BSD-3-Clause
#include "machine/cpu_features.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace attnscale::detail {

#if defined(__x86_64__)

namespace {

/// Registers of a CPUID answer, by index.
enum cpuid_register { eax, ebx, ecx, edx };

/// Registers that the operating system saves for each thread, as bits of XCR0.
constexpr unsigned xmm = 0, ymm = 0x6, zmm = 0xe6, tmm = 0x60000;

/// A bit of a CPUID answer (Intel's manual, volume 2A, CPUID), and the registers it needs.
struct feature {
  std::string_view name;
  unsigned leaf, subleaf;
  cpuid_register in;
  int bit;
  unsigned registers;
};

constexpr feature features[] = {
    {"SSE3", 1, 0, ecx, 0, xmm},        {"SSSE3", 1, 0, ecx, 9, xmm},
    {"FMA", 1, 0, ecx, 12, ymm},        {"SSE4.1", 1, 0, ecx, 19, xmm},
    {"SSE4.2", 1, 0, ecx, 20, xmm},     {"POPCNT", 1, 0, ecx, 23, xmm},
    {"AVX", 1, 0, ecx, 28, ymm},        {"F16C", 1, 0, ecx, 29, ymm},
    {"BMI1", 7, 0, ebx, 3, xmm},        {"AVX2", 7, 0, ebx, 5, ymm},
    {"BMI2", 7, 0, ebx, 8, xmm},        {"AVX-512F", 7, 0, ebx, 16, zmm},
    {"AVX-512DQ", 7, 0, ebx, 17, zmm},  {"AVX-512CD", 7, 0, ebx, 28, zmm},
    {"AVX-512BW", 7, 0, ebx, 30, zmm},  {"AVX-512VL", 7, 0, ebx, 31, zmm},
    {"AVX-512BF16", 7, 1, eax, 5, zmm}, {"AMX-BF16", 7, 0, edx, 22, tmm},
    {"AMX-TILE", 7, 0, edx, 24, tmm},
};

/// XCR0, or 0 where the operating system does not let programs read it, and saves only SSE
/// registers.
unsigned kept_registers() {
  unsigned answer[4] = {};
  constexpr unsigned osxsave = 1u << 27;
  if (__get_cpuid(1, &answer[eax], &answer[ebx], &answer[ecx], &answer[edx]) == 0) return 0;
  if ((answer[ecx] & osxsave) == 0) return 0;
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

}  // namespace

bool cpu_has(std::string_view name) {
  for (const feature& each : features) {
    if (each.name != name) continue;
    unsigned answer[4] = {};
    return __get_cpuid_count(each.leaf, each.subleaf, &answer[eax], &answer[ebx], &answer[ecx],
                             &answer[edx]) != 0 &&
           (answer[each.in] >> each.bit & 1u) != 0 &&
           (kept_registers() & each.registers) == each.registers;
  }
  return false;
}

bool gains_from_prefetches() {
  static const bool gains = [] {
    unsigned answer[4] = {};
    if (__get_cpuid(0, &answer[eax], &answer[ebx], &answer[ecx], &answer[edx]) == 0 ||
        answer[ebx] != signature_AMD_ebx)
      return true;
    __get_cpuid(1, &answer[eax], &answer[ebx], &answer[ecx], &answer[edx]);
    const unsigned family = (answer[eax] >> 8 & 0xfu) + (answer[eax] >> 20 & 0xffu);
    return family != 0x19;
  }();
  return gains;
}

#else

bool cpu_has(std::string_view) { return false; }
bool gains_from_prefetches() { return true; }

#endif

}  // namespace attnscale::detail
