// SPDX-License-Identifier: BSD-3-Clause
//
// Random numbers and simulations. Python has checked the values; here is checked only what would
// write where it may not.
#include <pybind11/stl.h>

#include <array>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "attnscale/montecarlo.hpp"

namespace attnscale::bindings {
namespace {

distribution distribution_named(const std::string& name) {
  if (name == "uniform") return distribution::uniform;
  if (name == "normal") return distribution::normal;
  if (name == "truncated_normal") return distribution::truncated_normal;
  if (name == "laplace") return distribution::laplace;
  throw std::invalid_argument("there is no distribution '" + name + "'");
}

/// Two parameters, of truncated_normal four.
variate variate_of(const std::string& name, const std::vector<double>& parameters) {
  variate what;
  what.kind = distribution_named(name);
  const std::size_t expected = what.kind == distribution::truncated_normal ? 4 : 2;
  if (parameters.size() != expected)
    throw std::invalid_argument(name + " takes " + std::to_string(expected) + " parameters, got " +
                                std::to_string(parameters.size()));
  what.a = parameters[0];
  what.b = parameters[1];
  if (expected == 4) {
    what.low = parameters[2];
    what.high = parameters[3];
  }
  return what;
}

void check_output(const py::array& out, py::ssize_t axes) {
  const element_type type = element_type_of(out.dtype());
  const bool good = type == element_type::float32 || type == element_type::float64;
  if (!good || out.ndim() != axes || !out.writeable() || !is_aligned(out) ||
      (out.flags() & py::array::c_style) == 0)
    throw std::invalid_argument("out must be a writable C-contiguous float32 or float64 array of " +
                                std::to_string(axes) + " axes");
}

void mc_fill(py::array& out, const std::string& name, const std::vector<double>& parameters,
             std::uint64_t key, std::uint64_t stream, std::int64_t first, int num_threads) {
  check_output(out, 1);
  const variate what = variate_of(name, parameters);
  void* const data = out.mutable_data();
  const bool wide = element_type_of(out.dtype()) == element_type::float64;
  const std::int64_t n = out.size();
  run_released(num_threads, [&](const execution& how) {
    if (wide)
      fill(static_cast<double*>(data), n, what, {key, stream}, first, how);
    else
      fill(static_cast<float*>(data), n, what, {key, stream}, first, how);
  });
}

void mc_sphere(py::array& out, double radius, std::uint64_t key, std::uint64_t stream,
               std::int64_t first, int num_threads) {
  check_output(out, 2);
  void* const data = out.mutable_data();
  const bool wide = element_type_of(out.dtype()) == element_type::float64;
  const std::int64_t n = out.shape(0), dim = out.shape(1);
  run_released(num_threads, [&](const execution& how) {
    if (wide)
      fill_sphere(static_cast<double*>(data), n, dim, radius, {key, stream}, first, how);
    else
      fill_sphere(static_cast<float*>(data), n, dim, radius, {key, stream}, first, how);
  });
}

score_model model_named(const std::string& name) {
  if (name == "sphere") return score_model::sphere;
  if (name == "gaussian") return score_model::gaussian;
  if (name == "correlated") return score_model::correlated;
  throw std::invalid_argument("there is no model '" + name + "'");
}

void check_at_least(const char* name, std::int64_t value, std::int64_t least) {
  if (value < least)
    throw std::invalid_argument(std::string(name) + " must be at least " + std::to_string(least) +
                                ", got " + std::to_string(value));
}

/// (count, multipliers, 9): the members of score_row.
py::array mc_score_rows(const std::string& model, std::int64_t n, std::int64_t head_dim,
                        double correlation, const std::vector<double>& multipliers,
                        double needle_cosine, std::uint64_t key, std::uint64_t stream,
                        std::int64_t first, std::int64_t count, int num_threads) {
  check_at_least("n", n, 1);
  check_at_least("head_dim", head_dim, 1);
  check_at_least("count", count, 0);
  score_rows_problem problem{model_named(model), n,           head_dim,
                             correlation,        multipliers, needle_cosine,
                             {key, stream},      first,       count};
  constexpr std::int64_t columns = sizeof(score_row) / sizeof(double);
  const auto width = static_cast<std::int64_t>(multipliers.size());
  py::array result = new_array({count, width}, {columns}, element_type::float64);
  auto* const out = static_cast<score_row*>(result.mutable_data());
  run_released(num_threads, [&](const execution& how) { run(problem, out, how); });
  return result;
}

py::array mc_max_cosine(std::int64_t n, std::int64_t head_dim, std::uint64_t key,
                        std::uint64_t stream, std::int64_t first, std::int64_t count,
                        int num_threads) {
  check_at_least("n", n, 1);
  check_at_least("head_dim", head_dim, 1);
  check_at_least("count", count, 0);
  py::array result = new_array({count}, {}, element_type::float64);
  auto* const out = static_cast<double*>(result.mutable_data());
  run_released(num_threads, [&](const execution& how) {
    max_cosine(out, count, n, head_dim, {key, stream}, first, how);
  });
  return result;
}

}  // namespace

void register_montecarlo(py::module_& m) {
  m.def("philox4x32_10", &philox4x32_10, py::arg("counter"), py::arg("key"));
  m.def("mc_fill", &mc_fill, py::arg("out"), py::arg("distribution"), py::arg("parameters"),
        py::arg("key"), py::arg("stream") = 0, py::arg("first") = 0, py::arg("num_threads") = 0);
  m.def("mc_sphere", &mc_sphere, py::arg("out"), py::arg("radius"), py::arg("key"),
        py::arg("stream") = 0, py::arg("first") = 0, py::arg("num_threads") = 0);
  m.def("mc_score_rows", &mc_score_rows, py::kw_only(), py::arg("model"), py::arg("n"),
        py::arg("head_dim"), py::arg("correlation"), py::arg("multipliers"),
        py::arg("needle_cosine"), py::arg("key"), py::arg("stream") = 0, py::arg("first") = 0,
        py::arg("count"), py::arg("num_threads") = 0);
  m.def("mc_max_cosine", &mc_max_cosine, py::kw_only(), py::arg("n"), py::arg("head_dim"),
        py::arg("key"), py::arg("stream") = 0, py::arg("first") = 0, py::arg("count"),
        py::arg("num_threads") = 0);
}

}  // namespace attnscale::bindings
