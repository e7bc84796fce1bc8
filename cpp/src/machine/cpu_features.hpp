// SPDX-License-Identifier: BSD-3-Clause
//
// What instructions this CPU has. The compiler's own question, __builtin_cpu_supports, is answered
// by a library of the compiler, and that of zig, with which wheels are built, says no to
// everything.
#pragma once

#include <string_view>

namespace attnscale::detail {

/// Whether the CPU has a set of instructions, such as "AVX2", and the operating system keeps its
/// registers. False for a name that is not in the table of cpu_features.cpp, and on other
/// architectures.
bool cpu_has(std::string_view name);

}  // namespace attnscale::detail
