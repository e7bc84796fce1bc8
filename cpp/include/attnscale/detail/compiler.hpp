// SPDX-License-Identifier: BSD-3-Clause
//
// What the headers ask of the compiler. Each of them includes this one before it uses any of it, by
// itself or through another one.
#pragma once

#if __cplusplus < 202002L
#error "attnscale needs C++20: compile this file with -std=c++20 or a later standard"
// A file that is not there ends the compilation: else thousands of lines about what C++17 does not
// know would follow.
#include "attnscale/needs_cxx20"
#endif

// A compiler that is told that there are no infinities and no NaN drops the checks for them, and
// what is computed of a mask's -inf. The library itself is compiled without such options; but most
// checks are templates, and belong to the program.
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "attnscale needs infinities and NaN: add -fno-finite-math-only behind -ffast-math or -Ofast"
#endif
