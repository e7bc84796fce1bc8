# SPDX-License-Identifier: BSD-3-Clause
#
# Read after CMake's own rules for a platform. The linker of zig crashes when it links a macOS bundle; Python loads a
# library as well.
if(APPLE)
  set(CMAKE_SHARED_MODULE_CREATE_CXX_FLAGS -dynamiclib)
endif()
