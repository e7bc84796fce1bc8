// SPDX-License-Identifier: BSD-3-Clause
//
// Gradients of linear attention.
#include "arrays.hpp"
#include "attnscale/detail/linear_problem.hpp"
#include "linear_arrays.hpp"

namespace attnscale::bindings {
namespace {

using detail::linear_gradient_problem;

/// A writable array without repeated elements.
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

/// Arrays of a LinearGradientCall. Every head has its own gradients, (..., rows, dim), also of
/// shared keys.
struct linear_backward_arrays {
  numpy_array query, key, value, grad, query_out, key_out, value_out, decay, decay_out;

  explicit linear_backward_arrays(const record& call)
      : query(call["query"], 2),
        key(call["key"], 2),
        value(call["value"], 2),
        grad(call["grad"], 2),
        query_out(read_output(call["query_out"])),
        key_out(read_output(call["key_out"])),
        value_out(read_output(call["value_out"])) {}

  /// Sizes of one head, common to all arrays.
  void set_sizes(linear_gradient_problem& p, const record& call) {
    p.form = read_form(record(call["form"]), query.extent(1), value.extent(1));
    p.n_queries = query.extent(2), p.n_keys = key.extent(2);
    for (const numpy_array* each : {&query, &query_out})
      require_inner(*each, p.n_queries, p.form.head_dim);
    for (const numpy_array* each : {&key, &key_out})
      require_inner(*each, p.n_keys, p.form.head_dim);
    for (const numpy_array* each : {&value, &value_out})
      require_inner(*each, p.n_keys, p.form.value_dim);
    require_inner(grad, p.n_queries, p.form.value_dim);
    read_positions(p, call);
    decay = read_decay(call["decay"], p.form.norm, p.n_keys);
    decay_out = read_decay(call["decay_out"], p.form.norm, p.n_keys);
    require(bool(decay) == bool(decay_out) &&
                (!decay || (p.is_causal && p.offset == 0 && p.n_queries == p.n_keys &&
                            py::reinterpret_borrow<py::array>(call["decay_out"]).writeable())),
            "decay goes with its gradient, and with as many queries as keys");
  }
};

void linear_gradient(const py::object& given) {
  const record call(given);
  linear_backward_arrays x(call);
  linear_gradient_problem p{};
  x.set_sizes(p, call);
  p.query = x.query.layout(), p.key = x.key.layout(), p.value = x.value.layout();
  p.grad = x.grad.layout(), p.query_out = x.query_out.layout();
  p.key_out = x.key_out.layout(), p.value_out = x.value_out.layout();
  const extents shape = common_leading({&x.query_out});
  for (const numpy_array* each : {&x.query, &x.key, &x.value, &x.grad, &x.decay})
    if (*each) require_leading(*each, shape);
  for (const numpy_array* each : {&x.query_out, &x.key_out, &x.value_out})
    require_shape(*each, shape);
  if (x.decay_out) require_shape(x.decay_out, shape);
  for_each_index(shape, [&](const extents& index) {
    const auto at = [&](const numpy_array& array) { return array.at(index, shape); };
    const auto to = [&](const numpy_array& array) { return const_cast<void*>(at(array)); };
    p.heads.push_back(
        {{at(x.query), at(x.key), at(x.value), static_cast<const double*>(at(x.decay))},
         at(x.grad),
         to(x.query_out),
         to(x.key_out),
         to(x.value_out),
         static_cast<double*>(to(x.decay_out))});
  });
  run_released(call.get<int>("num_threads"), [&](const execution& how) { detail::run(p, how); });
}

}  // namespace

void register_linear_gradient(py::module_& module) {
  module.def("linear_gradient", &linear_gradient);
}

}  // namespace attnscale::bindings
