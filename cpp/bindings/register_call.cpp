// SPDX-License-Identifier: BSD-3-Clause
//
// Docstrings and messages live in Python; _core.pyi lists the signatures.
#include <algorithm>
#include <string>
#include <string_view>

#include "attnscale/normalizer_traits.hpp"
#include "call.hpp"
#include "lost_rows.hpp"

namespace attnscale::bindings {
namespace {

/// A float, a float64 array that broadcasts to (..., heads, n_queries), or None.
class number_or_rows {
 public:
  number_or_rows() = default;
  explicit number_or_rows(const py::object& numbers) : given_(!numbers.is_none()) {
    if (PyFloat_Check(numbers.ptr())) {
      one_ = PyFloat_AS_DOUBLE(numbers.ptr());
    } else {
      rows_ = numpy_array(numbers, 1);
    }
  }
  const double* at(const extents& index, const extents& shape) const {
    if (!given_) return nullptr;
    return rows_ ? static_cast<const double*>(rows_.at(index, shape)) : &one_;
  }
  std::ptrdiff_t row() const { return rows_ ? rows_.stride(1) : 0; }

 private:
  double one_ = 0;
  bool given_ = false;
  numpy_array rows_;
};

/// None for softmax, or a Rule of normalizers/_base.py: its fields by name.
class weights_rule {
 public:
  explicit weights_rule(const py::object& rule) {
    if (rule.is_none()) return;
    kind_ = normalizer_named(rule.attr("kind").cast<std::string>());
    numbers_ = {rule.attr("alpha").cast<double>(), rule.attr("k").cast<std::int64_t>(),
                rule.attr("eps").cast<double>()};
    if (const std::string name(name_of(traits_of(kind_).number)); !name.empty())
      number_ = number_or_rows(rule.attr(name.c_str()));
  }
  void describe(attention_problem& problem) const {
    problem.rule = kind_;
    problem.numbers = numbers_;
    problem.number_row = number_.row();
  }
  const double* at(const extents& index, const extents& shape) const {
    return number_.at(index, shape);
  }

 private:
  normalizer kind_ = normalizer::softmax;
  normalizer_numbers numbers_;
  number_or_rows number_;
};

/// New arrays for the named statistics, which the problem then points at.
py::tuple make_statistics(const py::tuple& names, const extents& shape,
                          attention_problem& problem) {
  py::tuple arrays(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const statistic which = statistic_named(names[i].cast<std::string_view>());
    py::array array = is_count(which) ? new_array<std::int64_t>(shape, {problem.n_queries})
                                      : new_array(shape, {problem.n_queries}, problem.compute);
    problem.statistics[which] = array.mutable_data();
    arrays[i] = std::move(array);
  }
  return arrays;
}

bool is_boolean(const py::object& mask) {
  return !mask.is_none() && py::reinterpret_borrow<py::array>(mask).dtype().kind() == 'b';
}

}  // namespace

call::call(const py::array& query, const py::array& key, const py::object& attn_mask,
           const py::object& begin, const py::object& end, const py::object& form, bool wide,
           int num_threads)
    : query_(query, 2),
      key_(key, 2),
      attn_mask_(attn_mask, 2, is_boolean(attn_mask) ? elements::known : elements::floats),
      begin_(begin, 1, elements::known),
      end_(end, 1, elements::known),
      wide_(wide),
      num_threads_(num_threads) {
  if (form.is_none()) return;
  form_ = {.softcap = form.attr("softcap").cast<double>()};
  tables_ = {numpy_array(form.attr("distance_scale"), 2),
             numpy_array(form.attr("distance_bias"), 2)};
}

void call::describe(score_problem& problem) const {
  problem.compute = wide_ ? element_type::float64 : element_type::float32;
  problem.query = query_.layout();
  problem.key = key_.layout();
  problem.n_queries = query_.extent(2);
  problem.n_keys = key_.extent(2);
  problem.head_dim = query_.extent(1);
  problem.mask_type = !attn_mask_               ? mask_kind::none
                      : attn_mask_.is_boolean() ? mask_kind::boolean
                                                : mask_kind::additive;
  if (attn_mask_) problem.attn_mask = attn_mask_.layout();
  problem.begin_row = begin_.stride(1);
  problem.end_row = end_.stride(1);
  problem.leading_keys = leading_keys_;
  problem.form = form_;
  problem.tables = {tables_.distance_scale.layout(), tables_.distance_bias.layout()};
  for (const numpy_array* table : {&tables_.distance_scale, &tables_.distance_bias})
    if (*table && table->layout().type != problem.compute)
      throw std::invalid_argument("a table of scores must have the type of the arithmetic");
}

attention_head call::head(const extents& index, const extents& shape) const {
  attention_head head;
  head.query = query_.at(index, shape);
  head.key = key_.at(index, shape);
  head.attn_mask = attn_mask_.at(index, shape);
  head.begin = static_cast<const std::int64_t*>(begin_.at(index, shape));
  head.end = static_cast<const std::int64_t*>(end_.at(index, shape));
  head.tables = {tables_.distance_scale.at(index, shape), tables_.distance_bias.at(index, shape)};
  return head;
}

py::tuple call::attend(const py::object& value_array, const py::object& output_array,
                       const py::tuple& statistics, const py::object& scale_object,
                       const py::object& weights) {
  const numpy_array value(value_array, 2), output(output_array, 2);
  const number_or_rows scale(scale_object);
  const weights_rule rule(weights);
  const extents shape = leading_shape({&query_, &key_, &value});
  attention_problem problem;
  describe(problem);
  rule.describe(problem);
  problem.value = value.layout();
  problem.output = output.layout();
  problem.value_dim = value ? value.extent(1) : 0;
  problem.scale_row = scale.row();
  // Before the walk over the heads: a result that is too large fails at once.
  py::tuple arrays = make_statistics(statistics, shape, problem);
  problem.heads.reserve(static_cast<std::size_t>(count_entries(shape)));
  for_each_index(shape, [&](const extents& index) {
    attention_head& head = problem.heads.emplace_back(this->head(index, shape));
    head.value = value.at(index, shape);
    head.output = const_cast<void*>(output.at(index, shape));
    head.scale = scale.at(index, shape);
    head.number = rule.at(index, shape);
  });
  run_call(problem, num_threads_);
  has_lost_rows_ = bindings::has_lost_rows(problem);
  return arrays;
}

namespace {

/// Rows by the names of their statistics.
void point_at_rows(const py::dict& rows, row_outputs& places) {
  for (const auto& [name, array] : rows)
    if (const auto text = name.cast<std::string>(); text != "output")
      places[statistic_named(text)] =
          const_cast<void*>(py::reinterpret_borrow<py::array>(array).data());
}

py::object named_or_none(const py::dict& arrays, const char* name) {
  PyObject* const found = PyDict_GetItemString(arrays.ptr(), name);
  return py::reinterpret_borrow<py::object>(found ? found : Py_None);
}

/// Rows of numbers to write to.
double* rows_or_null(const py::dict& into, const char* name) {
  const py::object rows = named_or_none(into, name);
  if (rows.is_none()) return nullptr;
  return py::array_t<double>(py::reinterpret_borrow<py::array>(rows)).mutable_data();
}

}  // namespace

py::tuple call::gradients(const py::object& value_array, const py::object& grad_output_array,
                          const py::dict& into, const py::dict& saved, const py::dict& cotangents,
                          const py::object& scale_object, const py::object& weights) const {
  const numpy_array value(value_array, 2), grad_output(grad_output_array, 2);
  const numpy_array output(named_or_none(saved, "output"), 2);
  const auto place = [&](const char* name) { return numpy_array(named_or_none(into, name), 2); };
  const numpy_array d_query = place("query"), d_key = place("key"), d_value = place("value");
  const numpy_array d_attn_mask = place("attn_mask");
  const score_tables<numpy_array> d_tables{place("distance_scale"), place("distance_bias")};
  const auto row = [&](const char* name) { return numpy_array(named_or_none(into, name), 1); };
  const numpy_array received = row("received"), most_received = row("most_received");
  const number_or_rows scale(scale_object);
  const weights_rule rule(weights);
  const extents shape = leading_shape({&query_, &key_, &value});
  gradient_problem problem;
  describe(problem);
  rule.describe(problem);
  problem.value = value.layout();
  problem.value_dim = value ? value.extent(1) : 0;
  problem.output = output.layout();
  problem.grad_output = grad_output.layout();
  problem.d_query = d_query.layout();
  problem.d_key = d_key.layout();
  problem.d_value = d_value.layout();
  problem.d_attn_mask = d_attn_mask.layout();
  problem.scale_row = scale.row();
  point_at_rows(saved, problem.statistics);
  point_at_rows(cotangents, problem.cotangents);
  problem.d_number = rows_or_null(into, "bias");
  problem.d_alpha = rows_or_null(into, "alpha");
  py::array d_scale = new_array<double>(shape, {problem.n_queries});
  problem.d_scale = static_cast<double*>(d_scale.mutable_data());
  std::fill_n(problem.d_scale, d_scale.size(), 0.0);
  py::object d_sink = py::none();
  problem.heads.reserve(static_cast<std::size_t>(count_entries(shape)));
  for_each_index(shape, [&](const extents& index) {
    attention_head& head = problem.heads.emplace_back(this->head(index, shape));
    head.value = value.at(index, shape);
    head.output = const_cast<void*>(output.at(index, shape));
    head.scale = scale.at(index, shape);
    head.number = rule.at(index, shape);
    const auto at = [&](const numpy_array& array) {
      return const_cast<void*>(array.at(index, shape));
    };
    problem.gradients.push_back(
        {grad_output.at(index, shape),
         at(d_query),
         at(d_key),
         at(d_value),
         at(d_attn_mask),
         {at(d_tables.distance_scale), at(d_tables.distance_bias)},
         {static_cast<double*>(at(received)), static_cast<double*>(at(most_received))}});
  });
  if (traits_of(problem.rule).number == row_number::sink && !problem.heads.empty() &&
      problem.heads[0].number) {
    d_sink = new_array<double>(shape, {problem.n_queries});
    problem.d_number = static_cast<double*>(py::array(d_sink).mutable_data());
  }
  run_call(problem, num_threads_);
  return py::make_tuple(d_scale, d_sink);
}

py::tuple call::curve(const py::array_t<double>& scales) const {
  const extents shape = leading_shape({&query_, &key_});
  curve_problem problem;
  describe(problem);
  problem.scales.assign(scales.data(), scales.data() + scales.size());
  py::tuple results(4);
  void** const places[] = {&problem.entropy, &problem.lse, &problem.mean, &problem.variance};
  for (std::size_t k = 0; k < 4; ++k) {
    py::array array = new_array(shape, {problem.n_queries, scales.size()}, problem.compute);
    *places[k] = array.mutable_data();
    results[k] = std::move(array);
  }
  problem.heads.reserve(static_cast<std::size_t>(count_entries(shape)));
  for_each_index(shape, [&](const extents& index) { problem.heads.push_back(head(index, shape)); });
  run_released(num_threads_, [&](const execution& how) { run(problem, how); });
  return results;
}

py::tuple call::solve(const py::array& target_array, double tolerance) const {
  const numpy_array target(target_array, 1);
  const extents shape = leading_shape({&query_, &key_});
  solve_problem problem;
  describe(problem);
  problem.tolerance = tolerance;
  problem.scale_row = target.stride(1);
  py::list results;
  const auto add = [&](py::array array) {
    results.append(array);
    return array.mutable_data();
  };
  problem.scale = static_cast<double*>(add(new_array<double>(shape, {problem.n_queries})));
  for (void** place : {&problem.entropy, &problem.lowest, &problem.highest})
    *place = add(new_array(shape, {problem.n_queries}, problem.compute));
  for (bool** place : {&problem.converged, &problem.feasible})
    *place = static_cast<bool*>(add(new_array<bool>(shape, {problem.n_queries})));
  problem.iterations =
      static_cast<std::int64_t*>(add(new_array<std::int64_t>(shape, {problem.n_queries})));
  problem.heads.reserve(static_cast<std::size_t>(count_entries(shape)));
  for_each_index(shape, [&](const extents& index) {
    problem.heads.push_back(head(index, shape));
    problem.heads.back().scale = static_cast<const double*>(target.at(index, shape));
  });
  run_released(num_threads_, [&](const execution& how) { run(problem, how); });
  return py::tuple(results);
}

py::array call::count() const {
  const extents shape = leading_shape({&attn_mask_, &begin_, &end_});
  score_problem problem;
  describe(problem);
  py::array counts = new_array<std::int64_t>(shape, {problem.n_queries});
  problem.heads.reserve(static_cast<std::size_t>(count_entries(shape)));
  for_each_index(shape, [&](const extents& index) {
    attention_head& head = problem.heads.emplace_back();
    head.attn_mask = attn_mask_.at(index, shape);
    head.begin = static_cast<const std::int64_t*>(begin_.at(index, shape));
    head.end = static_cast<const std::int64_t*>(end_.at(index, shape));
  });
  auto* const out = static_cast<std::int64_t*>(counts.mutable_data());
  run_released(num_threads_, [&](const execution& how) { count_visible(problem, out, how); });
  return counts;
}

namespace {

/// What the core knows of statistics and of the rows of normalizers, for the tables of Python.
void register_traits(py::module_& module) {
  py::class_<statistic_traits>(module, "StatisticTraits")
      .def_readonly("unit", &statistic_traits::unit)
      .def_readonly("is_count", &statistic_traits::is_count)
      .def_readonly("has_gradient", &statistic_traits::has_gradient);
  py::dict traits;
  for (const statistic_traits& each : statistic_table) traits[py::str(each.name)] = each;
  module.attr("statistic_traits") = traits;
  module.attr("statistic_names") = py::tuple(traits);
  module.def("statistics_of", [](const std::string& rule, bool distribution) {
    py::list names;
    for (const statistic_traits& each : statistic_table)
      if (has_statistic(normalizer_named(rule), distribution, each.which)) names.append(each.name);
    return py::tuple(names);
  });
}

}  // namespace

void register_call(py::module_& module) {
  register_traits(module);
  py::class_<call>(module, "Call")
      .def(py::init<const py::array&, const py::array&, const py::object&, const py::object&,
                    const py::object&, const py::object&, bool, int>())
      .def("attend", &call::attend)
      .def_property_readonly("has_lost_rows", &call::has_lost_rows)
      .def("show_leading", &call::show_leading)
      .def("gradients", &call::gradients)
      .def("curve", &call::curve)
      .def("solve", &call::solve)
      .def("count", &call::count);
}

}  // namespace attnscale::bindings
