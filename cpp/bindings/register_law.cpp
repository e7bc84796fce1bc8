// SPDX-License-Identifier: BSD-3-Clause
//
// Scale laws: Python names, checks and explains them; the core computes their values.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attnscale/detail/refuse.hpp"
#include "attnscale/scale_law.hpp"

namespace py = pybind11;

namespace attnscale::bindings {
namespace {

using counts_array = py::array_t<double, py::array::c_style | py::array::forcecast>;

/// One law, or one per head where a parameter is a tuple with one number per head.
struct laws_of_heads {
  std::vector<scale_law> laws;
  bool by_head = false;

  laws_of_heads(std::string_view name, const py::tuple& parameters) {
    std::size_t heads = 1;
    for (const py::handle each : parameters)
      if (py::isinstance<py::tuple>(each)) {
        by_head = true;
        heads = std::max(heads, py::len(each));
      }
    std::vector<double> numbers(parameters.size());
    for (std::size_t head = 0; head < heads; ++head) {
      for (std::size_t i = 0; i < numbers.size(); ++i)
        numbers[i] = number_of(parameters[i], head, heads);
      laws.push_back(scale_law::of_numbers(name, numbers));
    }
  }

 private:
  static double as_double(const py::handle& number) {
    const double value = PyFloat_AsDouble(number.ptr());
    if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
    return value;
  }

  static double number_of(const py::handle& given, std::size_t head, std::size_t heads) {
    if (given.is_none()) return std::numeric_limits<double>::quiet_NaN();
    if (!py::isinstance<py::tuple>(given)) return as_double(given);
    const auto numbers = py::reinterpret_borrow<py::tuple>(given);
    if (numbers.size() != heads && numbers.size() != 1)
      detail::refuse("parameters with one number per head must have the same length, got " +
                     detail::text_of(numbers.size()) + " and " + detail::text_of(heads));
    return as_double(numbers[numbers.size() == 1 ? 0 : head]);
  }
};

std::int64_t whole_head_dim(double head_dim) {
  if (head_dim != std::floor(head_dim) || !(std::fabs(head_dim) < 0x1p53))
    detail::refuse("head_dim must be an integer, got " + detail::text_of(head_dim));
  return static_cast<std::int64_t>(head_dim);
}

/// Shape of n; with laws per head, the second to last axis has the heads.
std::vector<py::ssize_t> shape_of(const counts_array& n, const laws_of_heads& laws) {
  std::vector<py::ssize_t> shape(n.shape(), n.shape() + n.ndim());
  if (!laws.by_head) return shape;
  while (shape.size() < 2) shape.insert(shape.begin(), 1);
  py::ssize_t& rows = *(shape.end() - 2);
  const auto heads = static_cast<py::ssize_t>(laws.laws.size());
  if (rows != 1 && heads != 1 && rows != heads)
    detail::refuse("n must fit the parameters' " + detail::text_of(heads) + " heads, got " +
                   detail::text_of(rows) + " of them");
  if (rows == 1) rows = heads;
  return shape;
}

/// Multipliers, or scales, of the law of that name at n. Its parameters are in the order of
/// scale_law::parameters: a number, None, or a tuple with one number per head, which makes the
/// result broadcast against (heads, 1).
py::array_t<double> law_values(std::string_view name, const py::tuple& parameters,
                               const counts_array& n, double head_dim, bool scale) {
  const laws_of_heads given(name, parameters);
  const std::int64_t channels = whole_head_dim(head_dim);
  const auto evaluate = scale ? &scale_law::scales : &scale_law::multipliers;
  const auto shape = shape_of(n, given);
  py::array_t<double> values(shape);
  const std::span<const double> counts(n.data(), static_cast<std::size_t>(n.size()));
  const std::span<double> out(values.mutable_data(), static_cast<std::size_t>(values.size()));
  if (!given.by_head) {
    (given.laws[0].*evaluate)(counts, channels, out);
    return values;
  }
  const std::size_t heads = static_cast<std::size_t>(*(shape.end() - 2));
  const auto length = static_cast<std::size_t>(shape.back());
  const bool shared = counts.size() != out.size();  // all heads have the same n
  for (std::size_t at = 0; at * length < out.size(); ++at)
    (given.laws[given.laws.size() == 1 ? 0 : at % heads].*evaluate)(
        counts.subspan((shared ? at / heads : at) * length, length), channels,
        out.subspan(at * length, length));
  return values;
}

/// Returns (spelling, meaning of n) as the core reads and writes it.
py::tuple law_identity(const std::string& spelling) {
  const scale_law law = scale_law::parse(spelling);
  return py::make_tuple(law.spelling(), std::string(name_of(law.meaning())));
}

}  // namespace

void register_law(py::module_& m) {
  m.def("law_names", &scale_law::names);
  m.def("law_parameters", &scale_law::parameters, py::arg("name"));
  m.def("law_identity", &law_identity, py::arg("spelling"));
  m.def("law_values", &law_values, py::arg("name"), py::arg("parameters"), py::arg("n"),
        py::arg("head_dim"), py::arg("scale"));
}

}  // namespace attnscale::bindings
