# SPDX-License-Identifier: BSD-3-Clause
#
# Bill of materials of the extension module, which a wheel carries in .dist-info/sboms (PEP 770; CycloneDX 1.6).
# Versions are read from the headers that the compiler uses. It has no time and no serial number: the same sources
# give the same file. Included by cpp/bindings, where pybind11 is known.

# Sets <result> to the version that <header> defines as PREFIX_VERSION_MAJOR, _MINOR and _PATCH.
function(attnscale_header_version header prefix result)
  set(numbers)
  foreach(part IN ITEMS MAJOR MINOR PATCH)
    file(STRINGS ${header} line REGEX "define ${prefix}_VERSION_${part} +[0-9]+")
    string(REGEX MATCH "[0-9]+$" number "${line}")
    list(APPEND numbers ${number})
  endforeach()
  list(JOIN numbers "." version)
  set(${result} ${version} PARENT_SCOPE)
endfunction()

attnscale_header_version(${xsimd_headers}/xsimd/config/xsimd_config.hpp XSIMD xsimd_version)
attnscale_header_version(${xtl_headers}/xtl/xtl_config.hpp XTL xtl_version)
set(xtensor_config ${xtensor_headers}/xtensor/core/xtensor_config.hpp)
if(NOT EXISTS ${xtensor_config})
  set(xtensor_config ${xtensor_headers}/xtensor/xtensor_config.hpp)
endif()
attnscale_header_version(${xtensor_config} XTENSOR xtensor_version)

# Statically linked compiler libraries are part of a module, which happens only with zig here.
set(sbom_depends "\"xsimd\", \"xtl\", \"xtensor\", \"pybind11\"")
set(sbom_runtime "")
if(ATTNSCALE_ZIG_CXX)
  foreach(library IN ITEMS libcxx libcxxabi libunwind compiler-rt)
    string(APPEND sbom_depends ", \"${library}\"")
    string(APPEND sbom_runtime ",
    {
      \"type\": \"library\",
      \"bom-ref\": \"${library}\",
      \"name\": \"${library}\",
      \"version\": \"${CMAKE_CXX_COMPILER_VERSION}\",
      \"licenses\": [{\"expression\": \"Apache-2.0 WITH LLVM-exception\"}],
      \"purl\": \"pkg:github/llvm/llvm-project@llvmorg-${CMAKE_CXX_COMPILER_VERSION}#${library}\"
    }")
  endforeach()
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/sbom.cdx.json.in ${PROJECT_BINARY_DIR}/attnscale.cdx.json @ONLY)
