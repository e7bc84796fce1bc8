# SPDX-License-Identifier: BSD-3-Clause
#
# Header-only libraries as the targets attnscale_xsimd, attnscale_xtensor and attnscale_doctest. The search order of
# each: the directory in ATTNSCALE_<NAME>_INCLUDE_DIR; an installed CMake package; third_party, which a source archive
# has (collect_headers.cmake); an archive downloaded from ATTNSCALE_<NAME>_URL and checked against its SHA256. Only
# include directories are used: xtensor's own targets would add -march=native.

include(FetchContent)

set(xsimd_archive https://github.com/xtensor-stack/xsimd/archive/14.3.0.tar.gz)
set(xsimd_sha256 b3d50e7a73fbf4642ceef30131c93414901d69eee41c2a5302db650b03e2c792)
set(xsimd_probe xsimd/xsimd.hpp)
set(xsimd_names "libxsimd-dev (Debian), xsimd (conda-forge), xsimd (Homebrew)")

set(xtensor_archive https://github.com/xtensor-stack/xtensor/archive/0.25.0.tar.gz)
set(xtensor_sha256 32d5d9fd23998c57e746c375a544edf544b74f0a18ad6bc3c38cbba968d5e6c7)
set(xtensor_probe xtensor/xtensor_config.hpp xtensor/core/xtensor_config.hpp)
set(xtensor_names "libxtensor-dev (Debian), xtensor (conda-forge), xtensor (Homebrew)")

set(xtl_archive https://github.com/xtensor-stack/xtl/archive/0.7.7.tar.gz)
set(xtl_sha256 44fb99fbf5e56af5c43619fc8c29aa58e5fad18f3ba6e7d9c55c111b62df1fbb)
set(xtl_probe xtl/xtl_config.hpp)
set(xtl_names "xtl-dev (Debian), xtl (conda-forge), xtl (Homebrew)")

set(doctest_archive https://github.com/doctest/doctest/archive/v2.4.9.tar.gz)
set(doctest_sha256 19b2df757f2f3703a5e63cee553d85596875f06d91a3333acd80a969ef210856)
set(doctest_probe doctest/doctest.h)
set(doctest_names "doctest-dev (Debian), doctest (conda-forge), doctest (Homebrew)")

# Sets <result> to TRUE if one of the library's headers is in <directory>.
function(attnscale_has_headers name directory result)
  set(${result} FALSE PARENT_SCOPE)
  foreach(header IN LISTS ${name}_probe)
    if(EXISTS ${directory}/${header})
      set(${result} TRUE PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# One download attempt (FetchContent alone retries for more than a minute without a network), then FetchContent for
# its standard switches. SOURCE_SUBDIR names a directory that does not exist, so that the library's own build files
# are not read.
function(attnscale_fetch name result)
  string(TOUPPER ${name} upper)
  set(ATTNSCALE_${upper}_URL ${${name}_archive} CACHE STRING "Where ${name} is fetched from")
  set(ATTNSCALE_${upper}_SHA256 ${${name}_sha256} CACHE STRING "SHA256 of that archive")
  mark_as_advanced(ATTNSCALE_${upper}_URL ATTNSCALE_${upper}_SHA256)
  set(archive ${CMAKE_BINARY_DIR}/_deps/${name}-${ATTNSCALE_${upper}_SHA256}.tar.gz)
  if(NOT FETCHCONTENT_SOURCE_DIR_${upper} AND NOT FETCHCONTENT_FULLY_DISCONNECTED)
    if(NOT EXISTS ${archive})
      message(STATUS "Fetching ${ATTNSCALE_${upper}_URL}")
      file(DOWNLOAD ${ATTNSCALE_${upper}_URL} ${archive}.part
        TIMEOUT 120 INACTIVITY_TIMEOUT 15 STATUS status)
      list(GET status 0 code)
      if(NOT code EQUAL 0)
        file(REMOVE ${archive}.part)
        return()
      endif()
      file(RENAME ${archive}.part ${archive})
    endif()
  endif()
  FetchContent_Declare(${name} URL ${archive} SOURCE_SUBDIR none
    URL_HASH SHA256=${ATTNSCALE_${upper}_SHA256} DOWNLOAD_EXTRACT_TIMESTAMP ON)
  FetchContent_MakeAvailable(${name})
  set(${result} ${${name}_SOURCE_DIR} PARENT_SCOPE)
endfunction()

# attnscale_require(NAME MINIMUM_VERSION): adds NAME's include directory to attnscale_NAME. Sets NAME_headers to that
# directory, and NAME_packaged to TRUE if an installed CMake package provided it.
function(attnscale_require name minimum)
  string(TOUPPER ${name} upper)
  set(${name}_packaged FALSE PARENT_SCOPE)
  add_library(attnscale_${name} INTERFACE)
  if(ATTNSCALE_${upper}_INCLUDE_DIR)
    set(include_dir ${ATTNSCALE_${upper}_INCLUDE_DIR})
  else()
    find_package(${name} ${minimum} CONFIG QUIET)
    if(${name}_FOUND)
      set(imported ${name})
      if(NOT TARGET ${name})
        set(imported ${name}::${name})
      endif()
      get_target_property(include_dir ${imported} INTERFACE_INCLUDE_DIRECTORIES)
      set(origin "${${name}_VERSION} installed")
      set(${name}_packaged TRUE PARENT_SCOPE)
    elseif(EXISTS ${PROJECT_SOURCE_DIR}/third_party/include/${name})
      set(include_dir ${PROJECT_SOURCE_DIR}/third_party/include)
      set(origin "carried along:")
    else()
      attnscale_fetch(${name} source_dir)
      set(include_dir ${source_dir}/include)
      if(name STREQUAL "doctest")
        set(include_dir ${source_dir})
      endif()
    endif()
  endif()
  list(GET include_dir 0 first_dir)
  attnscale_has_headers(${name} "${first_dir}" found)
  if(NOT found)
    message(FATAL_ERROR "attnscale needs ${name} >= ${minimum}: not installed, and not fetched from ${ATTNSCALE_${upper}_URL}.\n"
      "Install ${${name}_names}, or pass -DATTNSCALE_${upper}_INCLUDE_DIR=DIRECTORY.")
  endif()
  message(STATUS "${name}: ${origin} ${include_dir}")
  set(${name}_headers ${first_dir} PARENT_SCOPE)
  target_include_directories(attnscale_${name} SYSTEM INTERFACE ${include_dir})
endfunction()

attnscale_require(xsimd 8.1)
attnscale_require(xtl 0.7)
attnscale_require(xtensor 0.24)
target_link_libraries(attnscale_xtensor INTERFACE attnscale_xtl)
if(ATTNSCALE_BUILD_TESTS)
  attnscale_require(doctest 2.4)
endif()
