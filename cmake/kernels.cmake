# SPDX-License-Identifier: BSD-3-Clause
#
# The kernels: each file of units/ once for each level, with the level's flags. Only these files see
# xsimd. They are optimised in every configuration, never take part in link-time optimisation and
# have no exceptions: at -O0, through LTO, or as clang's terminate handler, a helper compiled with
# AVX could be linked into code that runs without it.

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(attnscale_levels baseline avx2 avx512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(attnscale_levels neon)
else()
  set(attnscale_levels baseline)
endif()

set(flags_baseline "")
set(flags_neon "")
set(flags_avx2 -mavx2 -mfma -mf16c)
set(flags_avx512 -mavx512f -mavx512cd -mavx512dq -mavx512bw -mavx512vl -mfma -mavx2 -mf16c)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # gcc 12 warns about variables of its own <avx512fintrin.h> (GCC bug 105593).
  list(APPEND flags_avx512 -Wno-maybe-uninitialized -Wno-uninitialized)
endif()

# Half of what a compiler needs for a level with sanitizers goes into -fsanitize=undefined. Levels share their source but
# for a header of simd/: the preset asan watches one of them for it, and all for addresses.
set(ATTNSCALE_UNDEFINED_LEVELS ${attnscale_levels} CACHE STRING
  "Levels that -fsanitize=undefined watches, if it is given")
mark_as_advanced(ATTNSCALE_UNDEFINED_LEVELS)

# Sanitizers check what the source says, whatever is made of it: less of it is unrolled, and checks that are calls
# compile in a third of the time. At -O0 nothing is inlined: see above.
set(ATTNSCALE_KERNEL_OPTIONS "" CACHE STRING "How all kernels are optimised, in place of the below; not -O0")
mark_as_advanced(ATTNSCALE_KERNEL_OPTIONS)

# -O3 takes twice the time to compile. It is kept where it was measured to pay: by 1.2 to 1.3 for curves of entropy and
# for linear attention, by 1.18 for sparsemax of 256 keys, by 1.12 for the backward pass of 256. Attention forward,
# which spends its time in products that are unrolled by hand, and random numbers are as fast at -O2.
set(units_O2 softmax random)
set(units_O3 gradient scales sparse linear_gradient linear)
list(TRANSFORM units_O2 REPLACE "(.+)" "cpp/src/units/\\1.cpp")
list(TRANSFORM units_O3 REPLACE "(.+)" "cpp/src/units/\\1.cpp")
if(NOT ATTNSCALE_KERNEL_OPTIONS)
  set_source_files_properties(${units_O2} PROPERTIES COMPILE_OPTIONS -O2)
  set_source_files_properties(${units_O3} PROPERTIES COMPILE_OPTIONS -O3)
endif()

set(attnscale_kernels)
set(attnscale_kernel_objects)
foreach(level IN LISTS attnscale_levels)
  if(NOT level IN_LIST ATTNSCALE_UNDEFINED_LEVELS)
    list(APPEND flags_${level} -fno-sanitize=undefined)
  endif()
  set(kernels attnscale_kernels_${level})
  add_library(${kernels} OBJECT ${units_O3} ${units_O2})
  target_include_directories(${kernels} PRIVATE cpp/include cpp/src)
  target_link_libraries(${kernels} PRIVATE attnscale_flags attnscale_xsimd)
  target_compile_options(${kernels} PRIVATE
    ${flags_${level}} ${ATTNSCALE_KERNEL_OPTIONS} -fno-lto -fno-exceptions)
  list(APPEND attnscale_kernels ${kernels})
  list(APPEND attnscale_kernel_objects $<TARGET_OBJECTS:${kernels}>)
endforeach()
