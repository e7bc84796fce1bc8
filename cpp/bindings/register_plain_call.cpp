// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>
#include <vector>

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
  if (given.value) given.output = given.laid_out(output);
  attention_problem problem;
  problem.compute = given.compute;
  py::tuple rows = make_rows(*library, names, given.rows(), problem);
  given.fill(problem);
  run_call(problem, 0);
  return py::make_tuple(output.take(), std::move(rows), has_lost_rows(problem));
}

// ---- backward pass ------------------------------------------------------------------------------

bool is_half(element_type type) {
  return type != element_type::float32 && type != element_type::float64;
}

/// Numbers of the rows of a call, contiguous and of its compute type, with the memory of copies.
class row_numbers {
 public:
  explicit row_numbers(const plain_arrays& given) : shape_(given.rows()), type_(given.compute) {}

  /// Points at the rows of the named statistics in `places`; rows that are None are absent. Names
  /// without rows are ignored. False if one of the rows is not plain.
  template <class Library>
  bool read(const Library& library, const py::tuple& names, const py::sequence& rows,
            bool may_broadcast, row_outputs& places) {
    const std::size_t n = std::min(names.size(), rows.size());
    for (std::size_t i = 0; i < n; ++i) {
      const py::object each = rows[i];
      const statistic_traits* const of = each.is_none() ? nullptr : used(names[i]);
      if (!of) continue;
      void*& place = places[of->which];
      place = of->is_count ? counts(library, each) : numbers(library, each, may_broadcast);
      if (!place) return false;
    }
    return true;
  }

 private:
  /// The statistic of this name that a backward pass may use; null for other names.
  static const statistic_traits* used(py::handle name) {
    for (const statistic_traits& each : statistic_table)
      if ((each.has_gradient || each.which == statistic::argmax) && is_text(name, each.name.data()))
        return &each;
    return nullptr;
  }

  template <class Library>
  void* counts(const Library& library, py::handle rows) const {
    const auto found = library.read_integers(rows);
    const bool fits = found && found->shape() == shape_ && is_contiguous(*found);
    return fits ? found->place({}, {}) : nullptr;
  }

  template <class Library>
  void* numbers(const Library& library, py::handle rows, bool may_broadcast) {
    const auto one = finite_number(rows);
    const auto found = one ? strided_array(&*one, element_type::float64, sizeof(double), {}, {}, 1)
                           : library.read(rows, 1).value_or(strided_array());
    const bool is_whole = found.shape() == shape_;
    if (!found || !(is_whole || (may_broadcast && broadcasts(found, shape_)))) return nullptr;
    if (is_whole && found.layout().type == type_ && is_contiguous(found))
      return found.place({}, {});
    return type_ == element_type::float64 ? copied<double>(found) : copied<float>(found);
  }

  static bool is_contiguous(const strided_array& array) {
    std::int64_t step = 1;
    for (int axis = 1; axis <= array.dimension(); step *= array.extent(axis++))
      if (array.extent(axis) > 1 && array.stride(axis) != step) return false;
    return true;
  }

  template <class T>
  void* copied(const strided_array& rows) {
    const auto entries = static_cast<std::size_t>(count_entries(shape_));
    auto* to = reinterpret_cast<T*>(copies_.emplace_back(entries * sizeof(T)).data());
    void* const start = to;
    for_each_number(rows, shape_, [&](double number) {
      *to++ = static_cast<T>(number);
      return true;
    });
    return start;
  }

  extents shape_;
  element_type type_;
  std::vector<std::vector<char>> copies_;
};

/// A new array of zeros of this shape, as the caller sees it.
template <class Library>
new_matrices zeros(const Library& library, const strided_array& like) {
  new_matrices made(library, like.shape(), like.layout().type, like.item_size());
  made.fill_with_zeros();
  return made;
}

/// Inputs of a plain backward pass besides query, key and value.
struct backward_arrays {
  strided_array grad_output{}, output{};                    ///< absent: not in the loss; not saved
  bool of_scale = false, of_mask = false, of_sink = false;  ///< gradients that are wanted

  /// Whether the arrays are plain, and fit the call.
  template <class Library>
  bool read(const Library& library, const plain_arrays& given, py::handle grad, py::handle saved) {
    if (grad.is_none()) return true;
    if (!given.value || !read_output(library, grad, given, grad_output)) return false;
    return saved.is_none() || read_output(library, saved, given, output);
  }

 private:
  template <class Library>
  static bool read_output(const Library& library, py::handle object, const plain_arrays& given,
                          strided_array& into) {
    const auto found = library.read(object);
    if (!found || found->shape() != given.output_shape()) return false;
    into = given.laid_out(*found);
    return true;
  }
};

/// A number for each row, in double; None if it is not wanted.
class new_row_numbers {
 public:
  template <class Library>
  new_row_numbers(const Library& library, const extents& rows, bool wanted) {
    if (!wanted) return;
    made_ = library.make(rows, element_type::float64);
    numbers_ = {static_cast<double*>(made_.data), static_cast<std::size_t>(count_entries(rows))};
    std::fill(numbers_.begin(), numbers_.end(), 0.0);
  }

  double* data() { return numbers_.data(); }
  bool are_finite() const {
    return std::all_of(numbers_.begin(), numbers_.end(), [](double x) { return std::isfinite(x); });
  }
  py::object take() { return std::move(made_.array); }

 private:
  new_result made_{py::none(), nullptr};
  std::span<double> numbers_;
};

/// The gradients of query, key, value, the scale of each row, a float mask and the sink of each
/// row; None where there is none. None alone if a scale has no finite gradient, as in a row of NaN
/// without keys.
template <class Library>
py::object run_backward(const Library& library, plain_arrays& given, const backward_arrays& saved,
                        gradient_problem& problem) {
  if (!saved.grad_output) given.value = {};
  new_matrices d_query = zeros(library, given.laid_out(given.query));
  new_matrices d_key = zeros(library, given.laid_out(given.key));
  new_matrices d_value, d_mask;
  if (given.value) d_value = zeros(library, given.laid_out(given.value));
  if (saved.of_mask) d_mask = zeros(library, given.attn_mask);
  new_row_numbers d_scale(library, given.rows(), saved.of_scale);
  new_row_numbers d_sink(library, given.rows(), saved.of_sink);
  problem.d_scale = d_scale.data();
  problem.d_number = d_sink.data();
  given.output = saved.output;
  given.fill(problem);
  const gradient_arrays gradients{.grad_output = saved.grad_output,
                                  .query = given.laid_out(d_query),
                                  .key = given.laid_out(d_key),
                                  .value = given.laid_out(d_value),
                                  .attn_mask = d_mask};
  gradients.fill(problem, given.leading);
  run_call(problem, 0);
  if (!d_scale.are_finite()) return py::none();
  return py::make_tuple(d_query.take(), d_key.take(), d_value.take(), d_scale.take(), d_mask.take(),
                        d_sink.take());
}

/// Gradients of query, key and value, and if `wanted` (by the places of the result) of scale,
/// attn_mask and sink. `output` and `rows` are results of the forward pass, `grad_output` and
/// `cotangents` the gradients by them; rows and cotangents are in the order of `names`. None for a
/// call that is not plain, or whose type is not the compute type.
template <class Library>
py::object differentiate(py::handle query, py::handle key, py::handle value, py::handle grad_output,
                         py::handle output, const py::tuple& names, const py::sequence& rows,
                         const py::sequence& cotangents, const py::tuple& wanted,
                         const py::dict& keywords) {
  const auto options = plain_options::read(keywords);
  const auto library = options ? Library::of(query) : std::nullopt;
  if (!library) return py::none();
  plain_arrays given(*library, query, key, value, *options);
  if (!given || is_half(given.type())) return py::none();
  const auto wants = [&](std::size_t place) { return wanted[place].ptr() == Py_True; };
  backward_arrays arrays{.of_scale = wants(3),
                         .of_mask = wants(4) && given.mask_type == mask_kind::additive,
                         .of_sink = wants(5)};
  if (arrays.of_mask && given.attn_mask.layout().type != given.compute) return py::none();
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
