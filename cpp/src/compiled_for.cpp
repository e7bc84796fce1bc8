// SPDX-License-Identifier: BSD-3-Clause
#include "compiled_for.hpp"

namespace attnscale::detail {

#if defined(__x86_64__)

std::string_view lacking(std::string_view names) {
  // __builtin_cpu_supports takes nothing but a literal.
  const struct {
    std::string_view name;
    bool here;
  } known[] = {{"SSE3", __builtin_cpu_supports("sse3") != 0},
               {"SSSE3", __builtin_cpu_supports("ssse3") != 0},
               {"SSE4.1", __builtin_cpu_supports("sse4.1") != 0},
               {"SSE4.2", __builtin_cpu_supports("sse4.2") != 0},
               {"POPCNT", __builtin_cpu_supports("popcnt") != 0},
               {"AVX", __builtin_cpu_supports("avx") != 0},
               {"AVX2", __builtin_cpu_supports("avx2") != 0},
               {"FMA", __builtin_cpu_supports("fma") != 0},
               {"BMI1", __builtin_cpu_supports("bmi") != 0},
               {"BMI2", __builtin_cpu_supports("bmi2") != 0},
               {"AVX-512F", __builtin_cpu_supports("avx512f") != 0}};
  while (!names.empty()) {
    const std::string_view first = names.substr(0, names.find(' '));
    for (const auto& each : known)
      if (each.name == first && !each.here) return each.name;
    names.remove_prefix(first.size() + 1);
  }
  return {};
}

#else

std::string_view lacking(std::string_view) { return {}; }

#endif

}  // namespace attnscale::detail
