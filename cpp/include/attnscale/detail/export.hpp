// SPDX-License-Identifier: BSD-3-Clause
//
// Symbols that a shared library exports. It is compiled, like the programs that use it, with
// ATTNSCALE_SHARED (set by the CMake target and the pkg-config file). A static library exports
// nothing, so a library that links it exports nothing of it. Written by hand instead of by CMake's
// GenerateExportHeader, so that these headers compile without a configured build.
#pragma once

#include "attnscale/detail/compiler.hpp"

#if defined(ATTNSCALE_SHARED)
#define ATTNSCALE_EXPORT __attribute__((visibility("default")))
#else
#define ATTNSCALE_EXPORT
#endif
