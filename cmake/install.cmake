# SPDX-License-Identifier: BSD-3-Clause
#
# Component "cpp": the library as a CMake package. Component "python" (cpp/bindings): the
# extension module, all that a wheel takes.

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attnscale)
install(TARGETS attnscale EXPORT attnscaleTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/cpp/include/attnscale COMPONENT cpp
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")
install(EXPORT attnscaleTargets NAMESPACE attnscale::
  DESTINATION ${package_dir} COMPONENT cpp)

configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/attnscaleConfig.cmake.in
  ${PROJECT_BINARY_DIR}/attnscaleConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/attnscaleConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/attnscaleConfig.cmake
  ${PROJECT_BINARY_DIR}/attnscaleConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT cpp)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/LICENSE-THIRD-PARTY
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT cpp)
