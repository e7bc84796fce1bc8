// SPDX-License-Identifier: BSD-3-Clause
#include <string_view>

#include "attnscale/statistic.hpp"
#include "lost_rows.hpp"
#include "plain_gradient.hpp"

namespace attnscale::bindings {
namespace {

/// New arrays for the named statistics; points the problem at them.
template <class Library>
py::tuple make_rows(const Library& library, const py::tuple& names, const extents& shape,
                    attention_problem& problem) {
  py::tuple arrays(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const statistic which = statistic_named(names[i].cast<std::string_view>());
    new_result made =
        is_count(which) ? library.make_counts(shape) : library.make(shape, problem.compute);
    problem.statistics[which] = made.data;
    arrays[i] = std::move(made.array);
  }
  return arrays;
}

/// Returns the output (None without a value), the statistics, and whether rows of them are NaN;
/// None for a call that is not plain.
template <class Library>
py::object attend(py::handle query, py::handle key, py::handle value, const py::tuple& names,
                  const py::dict& keywords) {
  const auto options = plain_options::read(keywords);
  const auto library = options ? Library::of(query) : std::nullopt;
  if (!library) return py::none();
  plain_arrays given(*library, query, key, value, *options);
  if (!given) return py::none();
  new_matrices output;
  if (given.value)
    output = new_matrices(*library, given.output_shape(), given.laid_out(given.query));
  if (given.value) given.output = given.laid_out(output);
  attention_problem problem;
  problem.compute = given.compute;
  py::tuple rows = make_rows(*library, names, given.rows(), problem);
  given.fill(problem);
  run_call(problem, 0);
  return py::make_tuple(output.take(), std::move(rows), has_lost_rows(problem));
}

// ---- backward pass ------------------------------------------------------------------------------

/// The gradients of query, key, value, the scale of each row, a float mask and the sink of each
/// row; None where there is none. None alone if a scale has no finite gradient, as in a row of NaN
/// without keys.
template <class Library>
py::object run_backward(const Library& library, plain_arrays& given, const backward_arrays& saved,
                        gradient_problem& problem) {
  if (!saved.grad_output) given.value = {};
  const auto gradient = [&](const strided_array& of) {
    return new_gradient(library, given.laid_out(of), given.compute);
  };
  new_gradient d_query = gradient(given.query), d_key = gradient(given.key), d_value, d_mask;
  if (given.value) d_value = gradient(given.value);
  if (saved.of_mask) d_mask = new_gradient(library, given.attn_mask, given.compute);
  new_row_numbers d_scale(library, given.rows(), saved.of_scale);
  new_row_numbers d_sink(library, given.rows(), saved.of_sink);
  problem.d_scale = d_scale.data();
  problem.d_number = d_sink.data();
  given.output = saved.output;
  given.fill(problem);
  const gradient_arrays gradients{.grad_output = saved.grad_output,
                                  .query = given.laid_out(d_query.sums()),
                                  .key = given.laid_out(d_key.sums()),
                                  .value = given.laid_out(d_value.sums()),
                                  .attn_mask = d_mask.sums()};
  gradients.fill(problem, given.leading);
  run_call(problem, 0);
  if (!d_scale.are_finite()) return py::none();
  return py::make_tuple(d_query.take(), d_key.take(), d_value.take(), d_scale.take(), d_mask.take(),
                        d_sink.take());
}

/// Gradients of query, key and value, and if `wanted` (by the places of the result) of scale,
/// attn_mask and sink. `output` and `rows` are results of the forward pass, `grad_output` and
/// `cotangents` the gradients by them; rows and cotangents are in the order of `names`. None for a
/// call that is not plain.
template <class Library>
py::object differentiate(py::handle query, py::handle key, py::handle value, py::handle grad_output,
                         py::handle output, const py::tuple& names, const py::sequence& rows,
                         const py::sequence& cotangents, const py::tuple& wanted,
                         const py::dict& keywords) {
  const auto options = plain_options::read(keywords);
  const auto library = options ? Library::of(query) : std::nullopt;
  if (!library) return py::none();
  plain_arrays given(*library, query, key, value, *options);
  if (!given || !serves_gradients(given)) return py::none();
  const auto wants = [&](std::size_t place) { return wanted[place].ptr() == Py_True; };
  backward_arrays arrays{.of_scale = wants(3),
                         .of_mask = wants(4) && given.mask_type == mask_kind::additive,
                         .of_sink = wants(5)};
  if (arrays.of_mask && !(new_gradient::serves(given.attn_mask, given.compute) &&
                          new_gradient::is_small(given.attn_mask)))
    return py::none();
  row_numbers numbers(given);
  gradient_problem problem;
  if (!arrays.read(*library, given, grad_output, output) ||
      !numbers.read(*library, names, rows, false, problem.statistics) ||
      !numbers.read(*library, names, cotangents, true, problem.cotangents))
    return py::none();
  if (!arrays.grad_output && !problem.cotangents.any()) return py::none();
  return run_backward(*library, given, arrays, problem);
}

}  // namespace

void register_plain_call(py::module_& module) {
  module.def("attend_arrays", &attend<numpy_library>);
  module.def("attend_tensors", &attend<tensor_library>);
  module.def("differentiate_arrays", &differentiate<numpy_library>);
  module.def("differentiate_tensors", &differentiate<tensor_library>);
}

}  // namespace attnscale::bindings
