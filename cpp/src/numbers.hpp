// SPDX-License-Identifier: BSD-3-Clause
//
// Constants, for files of all levels: no functions here that could be linked across them.
#pragma once

namespace attnscale::detail {

constexpr double ln2 = 0.69314718055994530942;
constexpr double log2e = 1.4426950408889634074;

}  // namespace attnscale::detail
