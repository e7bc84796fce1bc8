// SPDX-License-Identifier: BSD-3-Clause
#include <pybind11/pybind11.h>

#include <cstddef>
#include <ctime>
#include <string>
#include <string_view>

#include "attnscale/version.hpp"
#include "machine/compiled_for.hpp"

namespace py = pybind11;

namespace attnscale::bindings {

void register_runtime(py::module_& m);
void register_call(py::module_& m);
void register_intervals(py::module_& m);
void register_plain_call(py::module_& m);
void register_row_norm(py::module_& m);
void register_law(py::module_& m);
void register_bench(py::module_& m);
void register_linear(py::module_& m);
void register_linear_gradient(py::module_& m);
void register_montecarlo(py::module_& m);
void register_experiments(py::module_& m);
void register_theory(py::module_& m);
void register_xla(py::module_& m);

}  // namespace attnscale::bindings

// When cross-compiling, Python's headers may be those of the build machine. Its pyconfig.h must
// then have the type sizes of the target.
#define ATTNSCALE_SAME_SIZE(name, type) \
  static_assert((name) == sizeof(type), "pyconfig.h does not match the target system: " #name)
#if defined(SIZEOF_VOID_P) && !defined(_WIN32)
ATTNSCALE_SAME_SIZE(SIZEOF_VOID_P, void*);
ATTNSCALE_SAME_SIZE(SIZEOF_SHORT, short);
ATTNSCALE_SAME_SIZE(SIZEOF_INT, int);
ATTNSCALE_SAME_SIZE(SIZEOF_LONG, long);
ATTNSCALE_SAME_SIZE(SIZEOF_LONG_LONG, long long);
ATTNSCALE_SAME_SIZE(SIZEOF_FLOAT, float);
ATTNSCALE_SAME_SIZE(SIZEOF_DOUBLE, double);
ATTNSCALE_SAME_SIZE(SIZEOF_SIZE_T, std::size_t);
ATTNSCALE_SAME_SIZE(SIZEOF_TIME_T, std::time_t);
ATTNSCALE_SAME_SIZE(SIZEOF_WCHAR_T, wchar_t);
ATTNSCALE_SAME_SIZE(SIZEOF_OFF_T, off_t);
ATTNSCALE_SAME_SIZE(SIZEOF_PTHREAD_T, pthread_t);
#endif

namespace {

void refuse_other_cpus() {
  const std::string_view missing = attnscale::detail::lacking(attnscale::detail::compiled_for);
  if (missing.empty()) return;
  throw py::import_error(
      "attnscale was compiled with flags that ask for a CPU with " + std::string(missing) +
      ", which this one lacks: compile it again on this machine, without -march=native");
}

}  // namespace

// The core keeps its state in atomics and behind its own locks, so it needs no GIL.
PYBIND11_MODULE(_core, m, py::mod_gil_not_used()) {
  refuse_other_cpus();
  m.attr("__version__") = ATTNSCALE_VERSION;
  attnscale::bindings::register_runtime(m);
  attnscale::bindings::register_call(m);
  attnscale::bindings::register_intervals(m);
  attnscale::bindings::register_plain_call(m);
  attnscale::bindings::register_row_norm(m);
  attnscale::bindings::register_law(m);
  attnscale::bindings::register_bench(m);
  attnscale::bindings::register_linear(m);
  attnscale::bindings::register_linear_gradient(m);
  attnscale::bindings::register_montecarlo(m);
  attnscale::bindings::register_experiments(m);
  attnscale::bindings::register_theory(m);
  attnscale::bindings::register_xla(m);
}
