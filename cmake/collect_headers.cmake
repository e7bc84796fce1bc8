# SPDX-License-Identifier: BSD-3-Clause
#
# Header libraries, with their licences, that the source archive carries in third_party/ besides the repository. They
# are not Python packages, so pip could not install them; with them, pip needs only a compiler. scikit-build-core runs
# this when it makes the archive (pyproject.toml: sdist.cmake).

set(third_party ${PROJECT_SOURCE_DIR}/third_party)

# Sets <result> to the licence file of the headers in <include_dir>: that of an archive of the library, of Homebrew's
# link to one, or of a Debian package.
function(attnscale_licence name include_dir result)
  file(REAL_PATH ${include_dir}/${name} headers)
  file(GLOB found ${headers}/../../LICENSE ${include_dir}/../LICENSE ${include_dir}/../licenses/${name}.txt
    ${include_dir}/../share/doc/lib${name}-dev/copyright ${include_dir}/../share/doc/${name}-dev/copyright)
  if(NOT found)
    message(FATAL_ERROR "the source archive carries the headers of ${name} with their licence, and there is no LICENSE "
      "beside ${include_dir}/${name} and no share/doc/${name}-dev/copyright: pass -DATTNSCALE_${upper}_INCLUDE_DIR= "
      "the folder include of a release of ${name}.")
  endif()
  list(GET found 0 first)
  set(${result} ${first} PARENT_SCOPE)
endfunction()

foreach(name IN ITEMS xsimd xtl xtensor)
  string(TOUPPER ${name} upper)
  cmake_path(IS_PREFIX third_party ${${name}_headers} NORMALIZE is_here)
  if(is_here)
    continue() # an archive that is made out of an archive
  endif()
  attnscale_licence(${name} ${${name}_headers} licence)
  file(REMOVE_RECURSE ${third_party}/include/${name})
  file(COPY ${${name}_headers}/${name} DESTINATION ${third_party}/include FILES_MATCHING PATTERN "*.hpp")
  file(MAKE_DIRECTORY ${third_party}/licenses)
  file(COPY_FILE ${licence} ${third_party}/licenses/${name}.txt)
endforeach()
