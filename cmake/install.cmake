# SPDX-License-Identifier: BSD-3-Clause
#
# Component "cpp": the library as a CMake package. Component "python" (cpp/bindings): the extension module, the only
# content of a wheel.

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attnscale)
install(TARGETS attnscale EXPORT attnscaleTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/cpp/include/attnscale COMPONENT cpp
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")
install(EXPORT attnscaleTargets NAMESPACE attnscale::
  DESTINATION ${package_dir} COMPONENT cpp)

# attnscale's headers include those of xtensor and xtl. If no CMake package provided them (they were downloaded, or
# given as a directory), users of attnscale have no package to find either: the headers are installed, too.
set(third_party_dir ${CMAKE_INSTALL_INCLUDEDIR}/attnscale/third_party)
if(xtensor_packaged AND xtl_packaged)
  set(bundles_xtensor FALSE)
else()
  set(bundles_xtensor TRUE)
  install(DIRECTORY ${xtensor_headers}/xtensor ${xtl_headers}/xtl COMPONENT cpp
    DESTINATION ${third_party_dir} FILES_MATCHING PATTERN "*.hpp")
endif()

configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/attnscaleConfig.cmake.in
  ${PROJECT_BINARY_DIR}/attnscaleConfig.cmake
  INSTALL_DESTINATION ${package_dir} PATH_VARS third_party_dir)
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/attnscaleConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/attnscaleConfig.cmake
  ${PROJECT_BINARY_DIR}/attnscaleConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT cpp)

# For programs built without CMake. Paths are relative to the file, so that a prefix may be moved.
if(bundles_xtensor)
  set(pc_requires "")
  set(pc_third_party " -isystem \${includedir}/attnscale/third_party")
else()
  set(pc_requires xtensor)
  set(pc_third_party "")
endif()
set(pc_definitions "")
if(BUILD_SHARED_LIBS)
  set(pc_definitions " -DATTNSCALE_SHARED")
endif()
set(pc_libraries "")
foreach(library IN LISTS CMAKE_DL_LIBS)
  string(APPEND pc_libraries " -l${library}")
endforeach()
file(RELATIVE_PATH pc_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${CMAKE_CURRENT_LIST_DIR}/attnscale.pc.in ${PROJECT_BINARY_DIR}/attnscale.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/attnscale.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT cpp)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/LICENSE-THIRD-PARTY
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT cpp)
