// SPDX-License-Identifier: BSD-3-Clause
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "attnscale/simd_level.hpp"

// ctest runs this program once per level of the build; 77 means "skipped" there.
int main(int argc, char** argv) {
  const char* const wanted = std::getenv("ATTNSCALE_SIMD");
  const auto levels = attnscale::available_simd_levels();
  if (wanted != nullptr && std::find(levels.begin(), levels.end(), wanted) == levels.end()) {
    std::printf("skipped: this CPU or build has no level '%s'\n", wanted);
    return 77;
  }
  std::printf("level %s\n", std::string(attnscale::simd_level()).c_str());
  return doctest::Context(argc, argv).run();
}
