# SPDX-License-Identifier: BSD-3-Clause
#
# Sets chosen_levels to the SIMD level that a build of all levels would choose on this machine, and the level that it
# extends. Included by kernels.cmake.
set(machine ${PROJECT_SOURCE_DIR}/cpp/src/machine)
try_run(native_status native_compiled
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/native_level.cpp ${machine}/cpu_features.cpp ${machine}/levels.cpp
    ${machine}/simd_level.cpp
  CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${PROJECT_SOURCE_DIR}/cpp/include;${PROJECT_SOURCE_DIR}/cpp/src"
  COMPILE_OUTPUT_VARIABLE native_log
  RUN_OUTPUT_VARIABLE chosen_levels
  CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
if(NOT native_compiled OR NOT native_status EQUAL 0)
  message(FATAL_ERROR "ATTNSCALE_SIMD_LEVELS is 'native', but the program that names the level of this machine does not "
    "compile or run:\n${native_log}${chosen_levels}")
endif()
if(chosen_levels MATCHES "bf16")
  list(PREPEND chosen_levels avx512)
endif()
list(JOIN chosen_levels ", " native_levels)
message(STATUS "attnscale: SIMD levels of this machine: ${native_levels}")
