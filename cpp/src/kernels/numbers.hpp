// SPDX-License-Identifier: BSD-3-Clause
//
// Constants for files of all levels: no functions, which could be linked across levels.
#pragma once

#include <limits>

namespace attnscale::detail {

constexpr double ln2 = 0.69314718055994530942;
constexpr double log2e = 1.4426950408889634074;
constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace attnscale::detail
