// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "attnscale/simd_level.hpp"
#include "machine/cpu_features.hpp"
#include "machine/dispatch.hpp"

namespace test_simd_level {

using attnscale::available_simd_levels;
using attnscale::detail::kernels_for;

namespace {

std::string error_of(const char* requested) {
  try {
    kernels_for(requested);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

/// Whether a level exists for tests only, in some builds.
bool is_emulated(std::string_view level) { return level.substr(0, 9) == "emulated_"; }

}  // namespace

TEST_CASE("an emulated level is in use only if it is asked for") {
  CHECK(!is_emulated(kernels_for(nullptr).name));
}

TEST_CASE("the level in use is the forced one, else the fastest") {
  const char* const forced = std::getenv("ATTNSCALE_SIMD");
  CHECK(attnscale::simd_level() == (forced != nullptr ? forced : kernels_for(nullptr).name));
}

TEST_CASE("every available level can be asked for by its name") {
  const auto levels = available_simd_levels();
  REQUIRE(!levels.empty());
  for (const auto name : levels) CHECK(kernels_for(std::string(name).c_str()).name == name);
  // The last one, unless a CPU supports a level that is not faster on it.
  const std::string_view fastest = kernels_for(nullptr).name;
  CHECK((fastest == levels.back() || levels.back() == "avx512_bf16"));
  CHECK(kernels_for("").name == fastest);
}

TEST_CASE("levels come worst first, and the one that every CPU has is among them") {
  auto levels = available_simd_levels();
  std::erase_if(levels, is_emulated);
#if defined(__aarch64__)
  CHECK(levels == std::vector<std::string_view>{"neon"});
#elif defined(__wasm__)
  CHECK(levels == std::vector<std::string_view>{"wasm"});
#else
  const std::vector<std::string_view> order{"baseline", "avx2", "avx512", "avx512_bf16",
                                            "amx_bf16"};
  REQUIRE(!levels.empty());
#if !defined(ATTNSCALE_WITHOUT_BASELINE)
  CHECK(levels.front() == order.front());
#endif
  // A build may leave out any other level.
  auto place = order.begin();
  for (const auto name : levels) {
    CAPTURE(name);
    place = std::find(place, order.end(), name);
    REQUIRE(place != order.end());
    ++place;
  }
#endif
}

#if defined(__x86_64__)
TEST_CASE("the instructions of this CPU are those that the compiler's library finds") {
  using attnscale::detail::cpu_has;
  CHECK(cpu_has("SSE3") == (__builtin_cpu_supports("sse3") != 0));
  CHECK(cpu_has("SSSE3") == (__builtin_cpu_supports("ssse3") != 0));
  CHECK(cpu_has("SSE4.1") == (__builtin_cpu_supports("sse4.1") != 0));
  CHECK(cpu_has("SSE4.2") == (__builtin_cpu_supports("sse4.2") != 0));
  CHECK(cpu_has("POPCNT") == (__builtin_cpu_supports("popcnt") != 0));
  CHECK(cpu_has("AVX") == (__builtin_cpu_supports("avx") != 0));
  CHECK(cpu_has("AVX2") == (__builtin_cpu_supports("avx2") != 0));
  CHECK(cpu_has("FMA") == (__builtin_cpu_supports("fma") != 0));
  CHECK(cpu_has("BMI1") == (__builtin_cpu_supports("bmi") != 0));
  CHECK(cpu_has("BMI2") == (__builtin_cpu_supports("bmi2") != 0));
  CHECK(cpu_has("AVX-512F") == (__builtin_cpu_supports("avx512f") != 0));
  CHECK(cpu_has("AVX-512CD") == (__builtin_cpu_supports("avx512cd") != 0));
  CHECK(cpu_has("AVX-512DQ") == (__builtin_cpu_supports("avx512dq") != 0));
  CHECK(cpu_has("AVX-512BW") == (__builtin_cpu_supports("avx512bw") != 0));
  CHECK(cpu_has("AVX-512VL") == (__builtin_cpu_supports("avx512vl") != 0));
  CHECK(cpu_has("AVX-512BF16") == (__builtin_cpu_supports("avx512bf16") != 0));
  CHECK(!cpu_has("no such instructions"));
}
#endif

TEST_CASE("an unknown level is an error that names the variable, the choices and what was seen") {
  const std::string text = error_of("sse9");
  CHECK(text.find("ATTNSCALE_SIMD") != std::string::npos);
  CHECK(text.find("'sse9'") != std::string::npos);
  for (const auto name : available_simd_levels()) CHECK(text.find(name) != std::string::npos);
}

TEST_CASE("a level of another architecture is an error, not a silent fallback") {
#if defined(__aarch64__)
  CHECK(error_of("avx2").find("'avx2'") != std::string::npos);
#else
  CHECK(error_of("neon").find("'neon'") != std::string::npos);
#endif
}

TEST_CASE("a level that is set is the one whose kernels run, until another one is set") {
  const std::string before(attnscale::simd_level());
  for (const auto name : available_simd_levels()) {
    attnscale::set_simd_level(name);
    CHECK(attnscale::simd_level() == name);
    CHECK(&attnscale::detail::active_kernels() == &kernels_for(std::string(name).c_str()));
  }
  attnscale::set_simd_level(before);
  CHECK(attnscale::simd_level() == before);
}

TEST_CASE("a level that is not there is refused in the words of the variable, and not set") {
  const std::string before(attnscale::simd_level());
  for (const char* const name : {"sse9", "AVX2", ""}) {
    CAPTURE(name);
    std::string wanted = error_of("sse9").substr(std::string("ATTNSCALE_SIMD").size());
    wanted.replace(wanted.find("'sse9'"), 6, "'" + std::string(name) + "'");
    CHECK_THROWS_WITH_AS(attnscale::set_simd_level(name), ("level" + wanted).c_str(),
                         std::invalid_argument);
    CHECK(attnscale::simd_level() == before);
  }
}

}  // namespace test_simd_level
