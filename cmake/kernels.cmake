# SPDX-License-Identifier: BSD-3-Clause
#
# One object file for each instruction set, each with its own flags. Only these files see xsimd.
# They are optimised in every configuration, never take part in link-time optimisation and have no
# exceptions: at -O0, through LTO, or as clang's terminate handler, a helper compiled with AVX
# could be linked into code that runs without it.

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
set(ATTNSCALE_KERNEL_OPTIONS -O3 CACHE STRING "How the kernels are optimised; not -O0")
mark_as_advanced(ATTNSCALE_KERNEL_OPTIONS)

add_library(attnscale_kernels OBJECT)
target_include_directories(attnscale_kernels PRIVATE cpp/include cpp/src)
target_link_libraries(attnscale_kernels PRIVATE attnscale_flags attnscale_xsimd)
foreach(level IN LISTS attnscale_levels)
  set(unit ${PROJECT_SOURCE_DIR}/cpp/src/isa/${level}.cpp)
  target_sources(attnscale_kernels PRIVATE ${unit})
  if(NOT level IN_LIST ATTNSCALE_UNDEFINED_LEVELS)
    list(APPEND flags_${level} -fno-sanitize=undefined)
  endif()
  set_source_files_properties(${unit} PROPERTIES
    COMPILE_OPTIONS "${flags_${level}};${ATTNSCALE_KERNEL_OPTIONS};-fno-lto;-fno-exceptions")
endforeach()
