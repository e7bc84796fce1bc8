// SPDX-License-Identifier: BSD-3-Clause
//
// solve: arrays that Python has checked become a solve_problem.

#include "options.hpp"

namespace attnscale::bindings {
namespace {

template <class T>
T* add_array(py::list& results, const extents& shape, std::int64_t n_queries) {
  extents full = shape;
  full.push_back(n_queries);
  count(full);
  py::array_t<T> array(full);
  results.append(array);
  return array.mutable_data();
}

void* add_float(py::list& results, const extents& shape, const solve_problem& problem) {
  py::array array = new_array(shape, {problem.n_queries}, problem.compute);
  results.append(array);
  return array.mutable_data();
}

/// `target_array` broadcasts to (..., heads, n_queries). Returns (scale, entropy, lowest, highest,
/// converged, feasible, iterations), each of that shape.
py::tuple solve(const py::array& query_array, const py::array& key_array,
                const py::array& target_array, double tolerance, const py::object& mask,
                const py::object& key_lengths, std::int64_t left, std::int64_t right,
                bool bottom_right, int num_threads) {
  const operand query(query_array, 2), key(key_array, 2), target(target_array, 1);
  const options how(mask, key_lengths, left, right, bottom_right, 0.0, num_threads);
  const extents shape = leading_shape({&query, &key});

  solve_problem problem;
  describe(problem, query, key);
  describe(problem, how, kind_of(mask));
  problem.compute =
      is_double(query) || is_double(key) ? element_type::float64 : element_type::float32;
  problem.tolerance = tolerance;
  problem.scale_row = target.stride(1);
  py::list results;
  problem.scale = add_array<double>(results, shape, problem.n_queries);
  for (void** place : {&problem.entropy, &problem.lowest, &problem.highest})
    *place = add_float(results, shape, problem);
  problem.converged = add_array<bool>(results, shape, problem.n_queries);
  problem.feasible = add_array<bool>(results, shape, problem.n_queries);
  problem.iterations = add_array<std::int64_t>(results, shape, problem.n_queries);
  problem.heads.reserve(static_cast<std::size_t>(count(shape)));
  for_each_index(shape, [&](const extents& index) {
    problem.heads.push_back({query.at(index, shape), key.at(index, shape), nullptr, nullptr,
                             how.mask.at(index, shape),
                             static_cast<const double*>(target.at(index, shape)),
                             key_length(how, index, shape, problem.n_keys)});
  });
  run_released(num_threads, [&](const execution& run_how) { run(problem, run_how); });
  return py::tuple(results);
}

}  // namespace

void register_solve(py::module_& module) { module.def("solve", &solve); }

}  // namespace attnscale::bindings
