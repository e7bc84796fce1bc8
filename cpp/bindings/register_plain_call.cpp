// SPDX-License-Identifier: BSD-3-Clause
#include <string_view>

#include "attnscale/statistic.hpp"
#include "lost_rows.hpp"
#include "plain_call.hpp"

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
    output = new_matrices(*library, given.output_shape(), given.type(), given.query.item_size());
  given.output = output;
  attention_problem problem;
  problem.compute = given.compute;
  py::tuple rows = make_rows(*library, names, given.rows(), problem);
  given.fill(problem);
  run_call(problem, 0);
  return py::make_tuple(output.take(), std::move(rows), has_lost_rows(problem));
}

bool is_half(element_type type) {
  return type != element_type::float32 && type != element_type::float64;
}

/// Row numbers saved by the forward pass; null for None.
template <class Library>
std::optional<void*> read_rows(const Library& library, py::handle rows, const plain_arrays& given) {
  if (rows.is_none()) return nullptr;
  const auto found = library.read(rows);
  if (!found || found->shape() != given.rows() || found->layout().type != given.type())
    return std::nullopt;
  std::int64_t step = 1;  // stride of an axis of contiguous rows
  for (int axis = 1; axis <= found->dimension(); step *= found->extent(axis++))
    if (found->extent(axis) > 1 && found->stride(axis) != step) return std::nullopt;
  return found->place({}, {});
}

/// An array with the shape of the output.
template <class Library>
std::optional<strided_array> read_output(const Library& library, py::handle object,
                                         const plain_arrays& given) {
  auto found = library.read(object);
  return found && found->shape() == given.output_shape() ? found : std::nullopt;
}

/// Inputs of a plain backward pass besides query, key and value.
struct backward_arrays {
  strided_array grad_output, output;  ///< output: absent if it was not saved
  void* lse = nullptr;

  /// The arrays, or nullopt if one of them is not plain.
  template <class Library>
  static std::optional<backward_arrays> read(const Library& library, const plain_arrays& given,
                                             py::handle grad_output, py::handle output,
                                             py::handle lse) {
    const auto grad = read_output(library, grad_output, given);
    const auto saved = output.is_none() ? strided_array() : read_output(library, output, given);
    const auto rows = read_rows(library, lse, given);
    if (!grad || !saved || !rows) return std::nullopt;
    return backward_arrays{*grad, *saved, *rows};
  }
};

/// A new array of zeros of this shape.
template <class Library>
new_matrices zeros(const Library& library, const strided_array& like) {
  new_matrices made(library, like.shape(), like.layout().type, like.item_size());
  made.fill_with_zeros();
  return made;
}

/// The gradients of query, key and value.
template <class Library>
py::object run_backward(const Library& library, plain_arrays& given, const backward_arrays& saved) {
  new_matrices d_query = zeros(library, given.query), d_key = zeros(library, given.key);
  new_matrices d_value = zeros(library, given.value);
  given.output = saved.output;
  gradient_problem problem;
  problem.statistics[statistic::lse] = saved.lse;
  given.fill(problem);
  const gradient_arrays gradients{
      .grad_output = saved.grad_output, .query = d_query, .key = d_key, .value = d_value};
  gradients.fill(problem, given.leading);
  run_call(problem, 0);
  return py::make_tuple(d_query.take(), d_key.take(), d_value.take());
}

/// Gradients of query, key and value by the output only; output and lse of the forward pass may be
/// None. None for a call that is not plain, or whose type is not the compute type.
template <class Library>
py::object differentiate(py::handle query, py::handle key, py::handle value, py::handle grad_output,
                         py::handle output, py::handle lse, const py::dict& keywords) {
  const auto options = plain_options::read(keywords);
  if (!options || value.is_none() || grad_output.is_none()) return py::none();
  const auto library = Library::of(query);
  if (!library) return py::none();
  plain_arrays given(*library, query, key, value, *options);
  if (!given || is_half(given.type())) return py::none();
  const auto saved = backward_arrays::read(*library, given, grad_output, output, lse);
  return saved ? run_backward(*library, given, *saved) : py::none();
}

}  // namespace

void register_plain_call(py::module_& module) {
  module.def("attend_arrays", &attend<numpy_library>);
  module.def("attend_tensors", &attend<tensor_library>);
  module.def("differentiate_arrays", &differentiate<numpy_library>);
  module.def("differentiate_tensors", &differentiate<tensor_library>);
}

}  // namespace attnscale::bindings
