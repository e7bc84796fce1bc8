// SPDX-License-Identifier: BSD-3-Clause
//
// Random numbers and simulations. Python has checked the values, and the core checks them, too; the
// checks here are only those of the sizes of result arrays.
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "attnscale/detail/refuse.hpp"
#include "attnscale/montecarlo.hpp"
#include "experiments/projected_points.hpp"
#include "named.hpp"

namespace attnscale::bindings {
namespace {

using detail::check_at_least;

/// A distribution with two parameters; truncated_normal has four.
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

/// Simulated rows, (count, multipliers, 9): the members of score_row.
py::array mc_score_rows(const std::string& model, std::int64_t n, std::int64_t head_dim,
                        double correlation, const std::vector<double>& multipliers,
                        double needle_cosine, std::uint64_t key, std::uint64_t stream,
                        std::int64_t first, std::int64_t count, int num_threads) {
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
  check_at_least("count", count, 0);
  py::array result = new_array({count}, {}, element_type::float64);
  auto* const out = static_cast<double*>(result.mutable_data());
  run_released(num_threads, [&](const execution& how) {
    max_cosine(out, count, n, head_dim, {key, stream}, first, how);
  });
  return result;
}

using named_variate = std::pair<std::string, std::vector<double>>;

/// Sums of s, s^2, s^3 and s^4: (blocks, 4).
py::array mc_dot_products(std::int64_t head_dim, const named_variate& x, const named_variate& y,
                          std::int64_t block, std::uint64_t key, std::uint64_t stream,
                          std::int64_t first, std::int64_t count, int num_threads) {
  check_at_least("block", block, 1);
  check_at_least("count", count, 0);
  const dot_products_problem problem{head_dim,
                                     variate_of(x.first, x.second),
                                     variate_of(y.first, y.second),
                                     block,
                                     {key, stream},
                                     first,
                                     count};
  const std::int64_t blocks = count / block + (count % block != 0);
  py::array result = new_array({blocks}, {4}, element_type::float64);
  auto* const out = static_cast<power_sums*>(result.mutable_data());
  run_released(num_threads, [&](const execution& how) { run(problem, out, how); });
  return result;
}

using float_matrix = py::array_t<float, py::array::c_style>;

void check_matrix(const char* name, const float_matrix& matrix) {
  if (matrix.ndim() != 2)
    throw std::invalid_argument(std::string(name) + " must have 2 axes, got " +
                                std::to_string(matrix.ndim()));
}

/// Points in the form that mc_projection_rows takes.
py::array mc_points(const py::array_t<double, py::array::c_style | py::array::forcecast>& points) {
  if (points.ndim() != 2) throw std::invalid_argument("points must have 2 axes");
  const std::int64_t n = points.shape(0), dim = points.shape(1);
  const std::vector<float> found = detail::projected_points(points.data(), n, dim);
  py::array result = new_array({n}, {dim}, element_type::float32);
  std::copy(found.begin(), found.end(), static_cast<float*>(result.mutable_data()));
  return result;
}

py::array mc_project(const float_matrix& points, std::int64_t k, const std::string& kind,
                     std::uint64_t key, std::uint64_t stream, double density, int num_threads) {
  check_matrix("points", points);
  check_at_least("k", k, 1);
  const projection how{projection_named(kind), density, {key, stream}};
  const std::int64_t n = points.shape(0), dim = points.shape(1);
  py::array result = new_array({n}, {k}, element_type::float32);
  auto* const out = static_cast<float*>(result.mutable_data());
  const float* const data = points.data();
  run_released(num_threads,
               [&](const execution& run_how) { project(out, k, data, n, dim, how, run_how); });
  return result;
}

/// Returns (least, most, mean, variance, pairs outside each eps).
py::tuple pair_distances_ratio(const float_matrix& points, const float_matrix& projected,
                               const std::vector<double>& eps, int num_threads) {
  check_matrix("points", points);
  check_matrix("projected", projected);
  if (points.shape(0) != projected.shape(0))
    throw std::invalid_argument("points and projected must have the same number of rows, got " +
                                std::to_string(points.shape(0)) + " and " +
                                std::to_string(projected.shape(0)));
  distance_ratios found{};
  const float *const before = points.data(), *const after = projected.data();
  const std::int64_t n = points.shape(0), dim_before = points.shape(1),
                     dim_after = projected.shape(1);
  run_released(num_threads, [&](const execution& how) {
    found = compare_distances(before, dim_before, after, dim_after, n, eps, how);
  });
  const auto n_eps = static_cast<py::ssize_t>(eps.size());
  const py::array_t<std::int64_t> outside(n_eps, found.outside.data());
  return py::make_tuple(found.least, found.most, found.mean, found.variance, outside);
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
  m.def("mc_dot_products", &mc_dot_products, py::kw_only(), py::arg("head_dim"), py::arg("x"),
        py::arg("y"), py::arg("block"), py::arg("key"), py::arg("stream") = 0, py::arg("first") = 0,
        py::arg("count"), py::arg("num_threads") = 0);
  m.def("mc_points", &mc_points, py::arg("points"));
  m.def("mc_project", &mc_project, py::arg("points"), py::arg("k"), py::arg("kind"), py::arg("key"),
        py::arg("stream") = 0, py::arg("density") = 1.0 / 3, py::arg("num_threads") = 0);
  m.def("pair_distances_ratio", &pair_distances_ratio, py::arg("points"), py::arg("projected"),
        py::arg("eps"), py::arg("num_threads") = 0);
  m.def("mc_max_cosine", &mc_max_cosine, py::kw_only(), py::arg("n"), py::arg("head_dim"),
        py::arg("key"), py::arg("stream") = 0, py::arg("first") = 0, py::arg("count"),
        py::arg("num_threads") = 0);
}

}  // namespace attnscale::bindings
