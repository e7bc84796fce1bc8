// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>
#include <vector>

#include "attnscale/detail/export.hpp"

namespace attnscale {

/// Name of the level in use: "baseline", "avx2", "avx512", "avx512_bf16", "amx_bf16" or "neon". It
/// is the one that was set, else ATTNSCALE_SIMD, read once, else the best that the CPU has. An
/// unknown or unsupported name in the environment throws std::runtime_error, which lists the
/// choices.
ATTNSCALE_EXPORT std::string_view simd_level();

/// Sets the level of the whole process to a name of available_simd_levels(); another name throws
/// std::invalid_argument, which lists the choices, and changes nothing. ATTNSCALE_SIMD is not read
/// if this comes first. Any thread may call it at any time: later calls run at the new level, and
/// running calls of other threads may end at either one, within the same error bounds.
ATTNSCALE_EXPORT void set_simd_level(std::string_view level);

/// Levels that this build contains and this CPU can run, best last.
ATTNSCALE_EXPORT std::vector<std::string_view> available_simd_levels();

}  // namespace attnscale
