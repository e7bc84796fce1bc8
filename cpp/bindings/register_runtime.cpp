// SPDX-License-Identifier: BSD-3-Clause
#include <pybind11/pybind11.h>

#include <string>
#include <xsimd/config/xsimd_config.hpp>
#if __has_include(<xtensor/core/xtensor_config.hpp>)
#include <xtensor/core/xtensor_config.hpp>
#else
#include <xtensor/xtensor_config.hpp>
#endif

#include "attnscale/simd_level.hpp"
#include "attnscale/threads.hpp"
#include "machine/num_threads.hpp"

namespace attnscale::bindings {
namespace {

namespace py = pybind11;

std::string version(int major, int minor, int patch) {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

py::tuple available_levels() {
  py::list names;
  for (const std::string_view name : available_simd_levels()) names.append(py::str(name));
  return py::tuple(names);
}

py::dict build_info() {
  py::dict info;
  info["compiler"] = compiler();
  info["flags"] = ATTNSCALE_BUILD_FLAGS;
  info["xsimd"] = version(XSIMD_VERSION_MAJOR, XSIMD_VERSION_MINOR, XSIMD_VERSION_PATCH);
  info["xtensor"] = version(XTENSOR_VERSION_MAJOR, XTENSOR_VERSION_MINOR, XTENSOR_VERSION_PATCH);
  info["pybind11"] =
      version(PYBIND11_VERSION_MAJOR, PYBIND11_VERSION_MINOR, PYBIND11_VERSION_MICRO);
  return info;
}

}  // namespace

void register_runtime(py::module_& m) {
  m.def("simd_level", &simd_level);
  m.def("available_simd_levels", &available_levels);
  m.def("num_threads", &num_threads);
  m.def("set_num_threads", &set_num_threads, py::arg("n"));
  m.def("chosen_threads", &detail::chosen_threads);
  m.def("choose_threads", &detail::choose_threads, py::arg("n"));
  m.def("use_threads_of", &use_threads_of, py::arg("library"));
  m.def("threads_library", &threads_library);
  m.def("build_info", &build_info);
}

}  // namespace attnscale::bindings
