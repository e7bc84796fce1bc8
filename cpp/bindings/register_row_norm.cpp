// SPDX-License-Identifier: BSD-3-Clause
//
// _core.scale_rows and _core.pull_back_rows: qk_norm of queries and keys, and its gradient. Python
// has checked the arrays and the name.
#include <string>

#include "arrays.hpp"
#include "call/row_norm.hpp"

namespace attnscale::bindings {
namespace {

row_norm norm_named(const std::string& name) { return name == "l2" ? row_norm::l2 : row_norm::rms; }

template <class T>
py::array scaled(const strided_array& rows, row_norm norm) {
  row_array<T> found;
  run_released(0, [&](const execution&) { found = detail::normalized<T>(rows, norm); });
  return py::array(py::dtype::of<T>(), found.extents, found.numbers.data());
}

py::array scale_rows(const py::array& rows, const std::string& norm, bool wide) {
  const numpy_array given(rows, 2);
  return wide ? scaled<double>(given, norm_named(norm)) : scaled<float>(given, norm_named(norm));
}

template <class T>
void pull_back(const strided_array& rows, row_norm norm, py::array& gradient) {
  T* const places = static_cast<T*>(gradient.mutable_data());
  run_released(0, [&](const execution&) { detail::through_norm(rows, norm, places); });
}

void pull_back_rows(const py::array& rows, const std::string& norm, py::array gradient) {
  const numpy_array given(rows, 2);
  if (element_type_of(gradient.dtype()) == element_type::float64)
    pull_back<double>(given, norm_named(norm), gradient);
  else
    pull_back<float>(given, norm_named(norm), gradient);
}

}  // namespace

void register_row_norm(py::module_& module) {
  module.def("scale_rows", &scale_rows);
  module.def("pull_back_rows", &pull_back_rows);
}

}  // namespace attnscale::bindings
