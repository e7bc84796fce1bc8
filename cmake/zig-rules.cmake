# SPDX-License-Identifier: BSD-3-Clause
#
# Read after CMake's own rules for a platform. The linker of zig crashes where it is to make a bundle of macOS, which
# Python would load as it loads a library.
if(APPLE)
  set(CMAKE_SHARED_MODULE_CREATE_CXX_FLAGS -dynamiclib)
endif()
