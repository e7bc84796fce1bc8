# SPDX-License-Identifier: BSD-3-Clause
#
# Cross-compilation with `zig c++`, through the file ATTNSCALE_ZIG_CXX that packaging/zig_targets.py writes: one per
# target, because CMake and ccache need a compiler of one word. ATTNSCALE_ZIG_SYSTEM and ATTNSCALE_ZIG_PROCESSOR name
# the target.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ATTNSCALE_ZIG_CXX ATTNSCALE_ZIG_SYSTEM ATTNSCALE_ZIG_PROCESSOR)
set(CMAKE_SYSTEM_NAME ${ATTNSCALE_ZIG_SYSTEM})
set(CMAKE_SYSTEM_PROCESSOR ${ATTNSCALE_ZIG_PROCESSOR})
set(CMAKE_CXX_COMPILER ${ATTNSCALE_ZIG_CXX})
# The linker of zig does not accept GNU ar's archives of macOS objects.
if(ATTNSCALE_ZIG_SYSTEM STREQUAL "Darwin")
  cmake_path(GET ATTNSCALE_ZIG_CXX PARENT_PATH zig_programs)
  set(CMAKE_AR ${zig_programs}/ar CACHE FILEPATH "zig ar")
  set(CMAKE_RANLIB ${zig_programs}/ranlib CACHE FILEPATH "zig ranlib")
endif()
# Nothing of this machine is compiled in or linked: header libraries come from third_party (the source archive has
# it).
set(CMAKE_FIND_ROOT_PATH ${CMAKE_CURRENT_LIST_DIR}/none)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
# pybind11 is found in its Python package; xsimd, xtl and xtensor of the system must not be found.
foreach(library IN ITEMS xsimd xtl xtensor doctest)
  set(CMAKE_DISABLE_FIND_PACKAGE_${library} TRUE)
endforeach()
# zig strips its output: the strip of this machine knows no other format.
set(CMAKE_MODULE_LINKER_FLAGS_INIT -s)
set(CMAKE_USER_MAKE_RULES_OVERRIDE ${CMAKE_CURRENT_LIST_DIR}/zig-rules.cmake)
# No link-time optimisation check, which pybind11 would make: zig would compile libc++ once more for the answer.
set(CMAKE_INTERPROCEDURAL_OPTIMIZATION OFF)
# The linker of zig writes no dependency file.
set(CMAKE_LINK_DEPENDS_USE_LINKER FALSE)
# CMake's compiler checks compile without linking: the first link makes zig compile libc++, once more for the options
# of the module.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
