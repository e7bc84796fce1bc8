// SPDX-License-Identifier: BSD-3-Clause
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "attnscale/johnson_lindenstrauss.hpp"

namespace py = pybind11;

namespace attnscale::bindings {
namespace {

std::int64_t min_dim(double n, double eps, double failure_probability, bool chi_square) {
  const jl_tail tail = chi_square ? jl_tail::chi_square : jl_tail::relaxed;
  return jl_min_dim(n, {eps, failure_probability, tail});
}

double rule_of_thumb(double n, double constant) { return jl_rule_of_thumb(n, constant); }

double head_dim_of(double n, double head_dim, double n0) {
  return equivalent_head_dim(n, head_dim, n0);
}

}  // namespace

/// Registers closed forms over arrays that broadcast. An absent failure probability is NaN.
void register_theory(py::module_& m) {
  m.def("jl_min_dim", py::vectorize(&min_dim), py::arg("n"), py::arg("eps"),
        py::arg("failure_probability"), py::arg("chi_square"));
  m.def("jl_rule_of_thumb", py::vectorize(&rule_of_thumb), py::arg("n"), py::arg("constant"));
  m.def("equivalent_head_dim", py::vectorize(&head_dim_of), py::arg("n"), py::arg("head_dim"),
        py::arg("n0"));
}

}  // namespace attnscale::bindings
