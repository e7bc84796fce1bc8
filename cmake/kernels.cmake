# SPDX-License-Identifier: BSD-3-Clause
#
# The kernels: each file of units/ is compiled once per level, with the level's flags. Only these files see xsimd.
# They are optimised in every configuration, never take part in link-time optimisation and have no exceptions: at -O0,
# through LTO, or as clang's terminate handler, a helper compiled with AVX could be linked into code that runs without
# it.

# Levels with kernels for bfloat16 have only those of their own, and share the others with avx512. The first level
# runs on every CPU.
set(attnscale_bfloat16_levels)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(attnscale_levels baseline avx2 avx512)
  set(attnscale_bfloat16_levels avx512_bf16 amx_bf16)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(attnscale_levels neon)
elseif(CMAKE_SYSTEM_PROCESSOR STREQUAL "wasm32")
  set(attnscale_levels wasm)
else()
  set(attnscale_levels baseline)
endif()
list(GET attnscale_levels 0 attnscale_first_level)
set(attnscale_known_levels ${attnscale_levels} ${attnscale_bfloat16_levels})

set(ATTNSCALE_SIMD_LEVELS "" CACHE STRING "SIMD levels to build besides the one of every CPU, such as avx2;avx512; \
native: only those that this machine uses; empty: all that the compiler can build")
set(unknown_levels ${ATTNSCALE_SIMD_LEVELS})
list(REMOVE_ITEM unknown_levels ${attnscale_known_levels})
if(unknown_levels AND NOT ATTNSCALE_SIMD_LEVELS STREQUAL "native")
  list(JOIN attnscale_known_levels ", " choices)
  message(FATAL_ERROR "ATTNSCALE_SIMD_LEVELS must be native, or a list of ${choices} (what ${CMAKE_SYSTEM_PROCESSOR} has), "
    "got '${ATTNSCALE_SIMD_LEVELS}'")
endif()
set(tables_of_levels cpp/src/machine/levels.cpp cpp/src/machine/simd_level.cpp)
set(chosen_levels ${attnscale_known_levels})
if(ATTNSCALE_SIMD_LEVELS STREQUAL "native")
  include(cmake/native_levels.cmake)
elseif(ATTNSCALE_SIMD_LEVELS)
  set(chosen_levels ${attnscale_first_level} ${ATTNSCALE_SIMD_LEVELS})
endif()
if(chosen_levels MATCHES "bf16" AND NOT "avx512" IN_LIST chosen_levels)
  message(FATAL_ERROR "ATTNSCALE_SIMD_LEVELS must have avx512 beside avx512_bf16 and amx_bf16, which have its kernels, "
    "got '${ATTNSCALE_SIMD_LEVELS}'")
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^16\\." AND
    "avx512_bf16" IN_LIST chosen_levels)
  if("avx512_bf16" IN_LIST ATTNSCALE_SIMD_LEVELS)
    message(FATAL_ERROR "ATTNSCALE_SIMD_LEVELS must leave avx512_bf16 out: clang++ 16 crashes on its kernels, "
      "got '${ATTNSCALE_SIMD_LEVELS}'")
  endif()
  message(STATUS "attnscale: no level avx512_bf16, since clang++ 16 crashes on its kernels")
  list(REMOVE_ITEM chosen_levels avx512_bf16)
endif()
# Definitions name the levels left out, so that a full build has the same compiler options as before.
foreach(level IN LISTS attnscale_known_levels)
  if(NOT level IN_LIST chosen_levels)
    list(REMOVE_ITEM attnscale_levels ${level})
    list(REMOVE_ITEM attnscale_bfloat16_levels ${level})
    string(TOUPPER "ATTNSCALE_WITHOUT_${level}" without)
    set_property(SOURCE ${tables_of_levels} APPEND PROPERTY COMPILE_DEFINITIONS ${without})
  endif()
endforeach()

# Emulation of the bfloat16 instructions that few CPUs have, so that their logic is tested everywhere. Far slower than
# float32, for tests only.
option(ATTNSCALE_EMULATE_BFLOAT16 "Build levels for tests that emulate those with kernels for bfloat16" OFF)
mark_as_advanced(ATTNSCALE_EMULATE_BFLOAT16)
set(attnscale_emulated_levels)
if(ATTNSCALE_EMULATE_BFLOAT16)
  set(attnscale_emulated_levels emulated_avx512_bf16 emulated_amx_bf16)
  set_property(SOURCE ${tables_of_levels} APPEND PROPERTY COMPILE_DEFINITIONS ATTNSCALE_EMULATE_BFLOAT16)
  if("avx2" IN_LIST attnscale_known_levels AND NOT "avx2" IN_LIST attnscale_levels)
    message(FATAL_ERROR "ATTNSCALE_SIMD_LEVELS must have avx2 where ATTNSCALE_EMULATE_BFLOAT16 is ON, "
      "got '${ATTNSCALE_SIMD_LEVELS}'")
  endif()
endif()

set(flags_baseline "")
set(flags_neon "")
set(flags_wasm -msimd128)
set(flags_avx2 -mavx2 -mfma -mf16c)
set(flags_avx512 -mavx512f -mavx512cd -mavx512dq -mavx512bw -mavx512vl -mfma -mavx2 -mf16c)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # gcc 12 warns about variables of its own <avx512fintrin.h> (GCC bug 105593).
  list(APPEND flags_avx512 -Wno-maybe-uninitialized -Wno-uninitialized)
endif()

set(flags_avx512_bf16 ${flags_avx512} -mavx512bf16)
set(flags_amx_bf16 ${flags_avx512_bf16} -mamx-tile -mamx-bf16)
set(flags_emulated_avx512_bf16 -DATTNSCALE_EMULATED_LEVEL=emulated_avx512_bf16)
set(flags_emulated_amx_bf16 -DATTNSCALE_EMULATED_LEVEL=emulated_amx_bf16 -DATTNSCALE_EMULATED_AMX)
if("avx2" IN_LIST attnscale_levels)
  list(PREPEND flags_emulated_avx512_bf16 ${flags_avx2})
  list(PREPEND flags_emulated_amx_bf16 ${flags_avx2})
endif()

# With sanitizers, -fsanitize=undefined takes half of the time to compile a level. Levels share their source except
# for a header of simd/: the preset asan applies it to one of them, and the address sanitizer to all.
set(ATTNSCALE_UNDEFINED_LEVELS "" CACHE STRING
  "Levels that -fsanitize=undefined watches, if it is given; all if empty")
mark_as_advanced(ATTNSCALE_UNDEFINED_LEVELS)

# Sanitizers check the source, whatever the optimisation: less unrolling, and checks as calls, compile in a third of
# the time. At -O0 nothing is inlined: see above.
set(ATTNSCALE_KERNEL_OPTIONS "" CACHE STRING "How all kernels are optimised, in place of the below; not -O0")
mark_as_advanced(ATTNSCALE_KERNEL_OPTIONS)

# -O2 compiles in two thirds of the time of -O3, and products are unrolled by hand. Plain loops over rows, as in
# linear attention and in rounding to 16 bits, are as fast as at -O3 if -O2 may vectorise them (g++ leaves most of
# them scalar; clang++ vectorises). The lists of entmax and top-k gain 1.1 from -O3.
set(units_O2 random)
set(units_bfloat16 bfloat16)
set(units_loops gradient linear linear_gradient scales softmax)
set(units_O3 sparse)
foreach(units units_O2 units_loops units_O3 units_bfloat16)
  list(TRANSFORM ${units} REPLACE "(.+)" "cpp/src/units/\\1.cpp")
endforeach()
if(NOT ATTNSCALE_KERNEL_OPTIONS)
  set(loops -O2)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND loops -fvect-cost-model=dynamic)
  endif()
  set_source_files_properties(${units_O2} PROPERTIES COMPILE_OPTIONS -O2)
  set_source_files_properties(${units_loops} PROPERTIES COMPILE_OPTIONS "${loops}")
  set_source_files_properties(${units_O3} PROPERTIES COMPILE_OPTIONS -O3)
endif()

set(attnscale_kernels)
set(attnscale_kernel_objects)
list(APPEND attnscale_bfloat16_levels ${attnscale_emulated_levels})
foreach(level IN LISTS attnscale_levels attnscale_bfloat16_levels)
  if(ATTNSCALE_UNDEFINED_LEVELS AND NOT level IN_LIST ATTNSCALE_UNDEFINED_LEVELS)
    list(APPEND flags_${level} -fno-sanitize=undefined)
  endif()
  set(units ${units_loops} ${units_O3} ${units_O2})
  if(level IN_LIST attnscale_bfloat16_levels)
    set(units ${units_bfloat16})
    # Emulated levels are compiled in the least time: 8 s instead of 14 s.
    if(level IN_LIST attnscale_emulated_levels)
      list(APPEND flags_${level} -O1)
    else()
      list(APPEND flags_${level} ${loops})
    endif()
  endif()
  set(kernels attnscale_kernels_${level})
  add_library(${kernels} OBJECT ${units})
  target_include_directories(${kernels} PRIVATE cpp/include cpp/src)
  target_link_libraries(${kernels} PRIVATE attnscale_flags attnscale_xsimd)
  target_compile_options(${kernels} PRIVATE
    ${flags_${level}} ${ATTNSCALE_KERNEL_OPTIONS} -fno-lto -fno-exceptions)
  list(APPEND attnscale_kernels ${kernels})
  list(APPEND attnscale_kernel_objects $<TARGET_OBJECTS:${kernels}>)
endforeach()
