// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>
#include <vector>

namespace attnscale {

/// Name of the level in use: "baseline", "avx2", "avx512" or "neon". Chosen once, at the first
/// call: the best that the CPU has, or ATTNSCALE_SIMD. An unknown or unsupported name there is a
/// std::runtime_error that lists the choices.
std::string_view simd_level();

/// Levels that this build contains and this CPU can run, best last.
std::vector<std::string_view> available_simd_levels();

}  // namespace attnscale
