// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_features.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace attnscale::detail {

#if defined(__x86_64__)

namespace {

enum result { eax, ebx, ecx, edx };

/// Registers that the operating system keeps for each thread, as bits of XCR0.
constexpr unsigned sse = 0, avx = 0x6, avx512 = 0xe6, amx = 0x60000;

/// A bit of what the instruction CPUID answers (Intel's manual, volume 2A, CPUID), and the
/// registers.
struct feature {
  std::string_view name;
  unsigned leaf, subleaf;
  result in;
  int bit;
  unsigned registers;
};

constexpr feature features[] = {
    {"SSE3", 1, 0, ecx, 0, sse},           {"SSSE3", 1, 0, ecx, 9, sse},
    {"FMA", 1, 0, ecx, 12, avx},           {"SSE4.1", 1, 0, ecx, 19, sse},
    {"SSE4.2", 1, 0, ecx, 20, sse},        {"POPCNT", 1, 0, ecx, 23, sse},
    {"AVX", 1, 0, ecx, 28, avx},           {"F16C", 1, 0, ecx, 29, avx},
    {"BMI1", 7, 0, ebx, 3, sse},           {"AVX2", 7, 0, ebx, 5, avx},
    {"BMI2", 7, 0, ebx, 8, sse},           {"AVX-512F", 7, 0, ebx, 16, avx512},
    {"AVX-512DQ", 7, 0, ebx, 17, avx512},  {"AVX-512CD", 7, 0, ebx, 28, avx512},
    {"AVX-512BW", 7, 0, ebx, 30, avx512},  {"AVX-512VL", 7, 0, ebx, 31, avx512},
    {"AVX-512BF16", 7, 1, eax, 5, avx512}, {"AMX-BF16", 7, 0, edx, 22, amx},
    {"AMX-TILE", 7, 0, edx, 24, amx},
};

/// XCR0; 0 where the operating system does not let programs ask for it, and keeps no more than SSE.
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

#else

bool cpu_has(std::string_view) { return false; }

#endif

}  // namespace attnscale::detail
