// SPDX-License-Identifier: BSD-3-Clause
//
// Gradients of linear attention.
#include "arrays.hpp"
#include "attnscale/linear_gradient_problem.hpp"
#include "linear_arrays.hpp"

namespace attnscale::bindings {
namespace {

using detail::linear_gradient_problem;

/// An array that is written: each element once.
numpy_array read_output(const py::object& out) {
  const auto array = py::reinterpret_borrow<py::array>(out);
  require(array.writeable() && is_aligned(array), "gradients must be writable and aligned");
  return {out, 2};
}

void require_shape(const numpy_array& out, const extents& shape) {
  require(out.n_leading() == static_cast<int>(shape.size()), "gradients must have all heads");
  for (int axis = 1; axis <= out.n_leading(); ++axis)
    require(out.leading_extent(axis) == shape[shape.size() - static_cast<std::size_t>(axis)],
            "gradients must have all heads");
}

/// Every head has gradients of its own, (..., rows, dim), also of keys that heads share.
void linear_gradient(const py::object& query, const py::object& key, const py::object& value,
                     const py::object& grad, const py::object& query_out, const py::object& key_out,
                     const py::object& value_out, int map, int norm, double scale,
                     const py::object& offset, const py::object& projection, double norm_factor,
                     double shift, const py::object& query_turn, const py::object& key_turn,
                     const py::object& decay, const py::object& decay_out, int num_threads) {
  const numpy_array q(query, 2), k(key, 2), v(value, 2), g(grad, 2),
      dq = read_output(query_out), dk = read_output(key_out), dv = read_output(value_out);
  linear_gradient_problem p{};
  p.form = read_form(map, norm, scale, q.extent(1), v.extent(1));
  read_projection(p.form, projection, norm_factor, shift);
  p.n_queries = q.extent(2), p.n_keys = k.extent(2);
  for (const numpy_array* each : {&q, &dq}) require_inner(*each, p.n_queries, p.form.head_dim);
  for (const numpy_array* each : {&k, &dk}) require_inner(*each, p.n_keys, p.form.head_dim);
  for (const numpy_array* each : {&v, &dv}) require_inner(*each, p.n_keys, p.form.value_dim);
  require_inner(g, p.n_queries, p.form.value_dim);
  p.is_causal = !offset.is_none();
  if (p.is_causal) p.offset = offset.cast<std::int64_t>();
  p.query_turn = read_turn(query_turn, p.n_queries), p.key_turn = read_turn(key_turn, p.n_keys);
  require(p.form.map != detail::feature_map::turned || (p.query_turn && p.key_turn),
          "turns go with turned");
  const numpy_array faded = read_decay(decay, p.form.norm, p.n_keys),
                    dfaded = read_decay(decay_out, p.form.norm, p.n_keys);
  require(decay.is_none() == decay_out.is_none() &&
              (decay.is_none() || (p.is_causal && p.offset == 0 && p.n_queries == p.n_keys &&
                                   py::reinterpret_borrow<py::array>(decay_out).writeable())),
          "decay goes with its gradient, and with as many queries as keys");
  p.query = q.layout(), p.key = k.layout(), p.value = v.layout(), p.grad = g.layout();
  p.query_out = dq.layout(), p.key_out = dk.layout(), p.value_out = dv.layout();
  const extents shape = leading_shape({&dq});
  for (const numpy_array* each : {&q, &k, &v, &g, &faded})
    if (*each) require_leading(*each, shape);
  for (const numpy_array* each : {&dq, &dk, &dv}) require_shape(*each, shape);
  if (!decay.is_none()) require_shape(dfaded, shape);
  for_each_index(shape, [&](const extents& index) {
    const auto at = [&](const numpy_array& array) { return array.at(index, shape); };
    const auto to = [&](const numpy_array& array) { return const_cast<void*>(at(array)); };
    p.heads.push_back({at(q), at(k), at(v), at(g), to(dq), to(dk), to(dv),
                       static_cast<const double*>(at(faded)), static_cast<double*>(to(dfaded))});
  });
  run_released(num_threads, [&](const execution& how) { detail::run(p, how); });
}

}  // namespace

void register_linear_gradient(py::module_& module) {
  module.def("linear_gradient", &linear_gradient, py::arg("query"), py::arg("key"),
             py::arg("value"), py::arg("grad"), py::arg("query_out"), py::arg("key_out"),
             py::arg("value_out"), py::kw_only(), py::arg("map") = 0, py::arg("norm") = 0,
             py::arg("scale") = 1.0, py::arg("offset") = py::none(),
             py::arg("projection") = py::none(), py::arg("norm_factor") = 0.0,
             py::arg("shift") = 0.0, py::arg("query_turn") = py::none(),
             py::arg("key_turn") = py::none(), py::arg("decay") = py::none(),
             py::arg("decay_out") = py::none(), py::arg("num_threads") = 0);
}

}  // namespace attnscale::bindings
