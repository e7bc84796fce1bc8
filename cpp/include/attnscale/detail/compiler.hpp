// SPDX-License-Identifier: BSD-3-Clause
//
// Requirements on the compiler. Each header includes this one first, directly or through another
// header.
#pragma once

#if __cplusplus < 202002L
#error "attnscale needs C++20: compile this file with -std=c++20 or a later standard"
// A missing file ends the compilation; otherwise thousands of errors about C++17 would follow.
#include "attnscale/needs_cxx20"
#endif

// With -ffinite-math-only a compiler drops the checks for infinities and NaN, and computes with a
// mask's -inf as it likes. The library itself is compiled without such options, but most checks are
// templates compiled with the program.
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "attnscale needs infinities and NaN: add -fno-finite-math-only after -ffast-math or -Ofast"
#endif
