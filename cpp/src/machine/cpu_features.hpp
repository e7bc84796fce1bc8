// SPDX-License-Identifier: BSD-3-Clause
//
// Instruction sets of this CPU. The compiler's __builtin_cpu_supports needs a compiler library, and
// that of zig, which builds the wheels, returns false for everything.
#pragma once

#include <string_view>

namespace attnscale::detail {

/// Whether the CPU has an instruction set, such as "AVX2", and the operating system saves its
/// registers. False for a name that is not in the table of cpu_features.cpp, and on other
/// architectures.
bool cpu_has(std::string_view name);

/// Whether reading rows in order is faster with software prefetches. False on AMD's family 19h:
/// decoding on Zen 4 reaches 0.6 to 0.8 of the read bandwidth with them, and 0.9 to 1.0 without.
/// True elsewhere, as measured on Zen 5.
bool gains_from_prefetches();

}  // namespace attnscale::detail
