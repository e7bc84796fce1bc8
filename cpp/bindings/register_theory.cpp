// SPDX-License-Identifier: BSD-3-Clause
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "attnscale/johnson_lindenstrauss.hpp"
#include "attnscale/scale_law.hpp"

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

py::array_t<double> law_scale(const std::string& spelling, const py::array_t<double>& n,
                              std::int64_t head_dim) {
  const scale_law law = scale_law::parse(spelling);
  return py::vectorize([&law, head_dim](double each) { return law.scale(each, head_dim); })(n);
}

/// (spelling, what n means) as the core reads and writes it.
py::tuple law_identity(const std::string& spelling) {
  const scale_law law = scale_law::parse(spelling);
  return py::make_tuple(law.spelling(), std::string(name_of(law.meaning())));
}

}  // namespace

/// Closed forms over arrays that broadcast. A failure probability that is not given is NaN.
void register_theory(py::module_& m) {
  m.def("jl_min_dim", py::vectorize(&min_dim), py::arg("n"), py::arg("eps"),
        py::arg("failure_probability"), py::arg("chi_square"));
  m.def("jl_rule_of_thumb", py::vectorize(&rule_of_thumb), py::arg("n"), py::arg("constant"));
  m.def("law_names", &scale_law::names);
  m.def("law_identity", &law_identity, py::arg("spelling"));
  m.def("law_scale", &law_scale, py::arg("spelling"), py::arg("n"), py::arg("head_dim"));
  m.def("equivalent_head_dim", py::vectorize(&head_dim_of), py::arg("n"), py::arg("head_dim"),
        py::arg("n0"));
}

}  // namespace attnscale::bindings
