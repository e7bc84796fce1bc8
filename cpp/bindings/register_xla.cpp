// SPDX-License-Identifier: BSD-3-Clause
#include <pybind11/pybind11.h>

#include "xla_call.hpp"

namespace attnscale::bindings {
namespace {

namespace py = pybind11;

/// The foreign functions of XLA by name, for jax.ffi.register_ffi_target.
py::dict xla_handlers() {
  py::dict found;
  found["attend"] = py::capsule(reinterpret_cast<void*>(&xla::attend));
  found["gradients"] = py::capsule(reinterpret_cast<void*>(&xla::gradients));
  return found;
}

}  // namespace

void register_xla(py::module_& m) { m.def("xla_handlers", &xla_handlers); }

}  // namespace attnscale::bindings
