# SPDX-License-Identifier: BSD-3-Clause
#
# Cross-compile with `zig c++`, through the file ATTNSCALE_ZIG_CXX that packaging/zig_targets.py writes: one for each
# target, because CMake and ccache want a compiler that is one word. ATTNSCALE_ZIG_SYSTEM and ATTNSCALE_ZIG_PROCESSOR
# say what it compiles for.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ATTNSCALE_ZIG_CXX ATTNSCALE_ZIG_SYSTEM ATTNSCALE_ZIG_PROCESSOR)
set(CMAKE_SYSTEM_NAME ${ATTNSCALE_ZIG_SYSTEM})
set(CMAKE_SYSTEM_PROCESSOR ${ATTNSCALE_ZIG_PROCESSOR})
set(CMAKE_CXX_COMPILER ${ATTNSCALE_ZIG_CXX})
# Archives that GNU ar makes of objects for macOS are none to the linker of zig.
if(ATTNSCALE_ZIG_SYSTEM STREQUAL "Darwin")
  cmake_path(GET ATTNSCALE_ZIG_CXX PARENT_PATH zig_programs)
  set(CMAKE_AR ${zig_programs}/ar CACHE FILEPATH "zig ar")
  set(CMAKE_RANLIB ${zig_programs}/ranlib CACHE FILEPATH "zig ranlib")
endif()
# Nothing of this machine is compiled in or linked: header libraries come from third_party (the source archive has it).
set(CMAKE_FIND_ROOT_PATH ${CMAKE_CURRENT_LIST_DIR}/none)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
# pybind11 is found where its package of Python lies; of xsimd, xtl and xtensor the system's are not to be found.
foreach(library IN ITEMS xsimd xtl xtensor doctest)
  set(CMAKE_DISABLE_FIND_PACKAGE_${library} TRUE)
endforeach()
# Its output is stripped: the strip of this machine knows no other.
set(CMAKE_MODULE_LINKER_FLAGS_INIT -s)
set(CMAKE_USER_MAKE_RULES_OVERRIDE ${CMAKE_CURRENT_LIST_DIR}/zig-rules.cmake)
# Asked whether the compiler can optimise at link time, as pybind11 would, zig compiles libc++ once more for the answer.
set(CMAKE_INTERPROCEDURAL_OPTIMIZATION OFF)
# The linker of zig writes no list of what it has read.
set(CMAKE_LINK_DEPENDS_USE_LINKER FALSE)
# What CMake asks the compiler is compiled and not linked: to link for the first time, zig compiles libc++, and does so
# once more for the options that the module is linked with.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
