// SPDX-License-Identifier: BSD-3-Clause
#include <pybind11/pybind11.h>

#include "attnscale/version.hpp"

namespace py = pybind11;

namespace attnscale::bindings {

void register_runtime(py::module_& m);
void register_call(py::module_& m);
void register_plain_call(py::module_& m);
void register_law(py::module_& m);
void register_bench(py::module_& m);
void register_linear(py::module_& m);
void register_linear_gradient(py::module_& m);
void register_montecarlo(py::module_& m);
void register_experiments(py::module_& m);
void register_theory(py::module_& m);
void register_xla(py::module_& m);

}  // namespace attnscale::bindings

// The core keeps its state in atomics and behind its own locks, so it needs no GIL.
PYBIND11_MODULE(_core, m, py::mod_gil_not_used()) {
  m.attr("__version__") = ATTNSCALE_VERSION;
  attnscale::bindings::register_runtime(m);
  attnscale::bindings::register_call(m);
  attnscale::bindings::register_plain_call(m);
  attnscale::bindings::register_law(m);
  attnscale::bindings::register_bench(m);
  attnscale::bindings::register_linear(m);
  attnscale::bindings::register_linear_gradient(m);
  attnscale::bindings::register_montecarlo(m);
  attnscale::bindings::register_experiments(m);
  attnscale::bindings::register_theory(m);
  attnscale::bindings::register_xla(m);
}
