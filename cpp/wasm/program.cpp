// SPDX-License-Identifier: BSD-3-Clause
//
// For programs of the tests: what is thrown ends them with 1, the reason on the standard error.
#include <cstdio>
#include <cstdlib>

#include "refusals.hpp"

void attnscale::wasm::refused(int, const char* text) {
  std::fprintf(stderr, "%s\n", text);
  std::exit(1);
}
