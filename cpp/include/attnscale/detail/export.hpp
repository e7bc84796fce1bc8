// SPDX-License-Identifier: BSD-3-Clause
//
// What a shared library shows: it is compiled, like the programs that use it, with ATTNSCALE_SHARED
// (the CMake target and the file of pkg-config say so). A static library shows nothing, so that
// another library which it is linked into does not either. Written by hand and not by CMake's
// GenerateExportHeader: these headers also compile where no build has been configured.
#pragma once

#include "attnscale/detail/compiler.hpp"

#if defined(ATTNSCALE_SHARED)
#define ATTNSCALE_EXPORT __attribute__((visibility("default")))
#else
#define ATTNSCALE_EXPORT
#endif
