// SPDX-License-Identifier: BSD-3-Clause
//
// Registration of _core.CoreCall. Docstrings and messages are in Python; _core.pyi lists the
// signatures.
#include <algorithm>
#include <string>
#include <string_view>

#include "attnscale/normalizer_traits.hpp"
#include "call.hpp"
#include "lost_rows.hpp"

namespace attnscale::bindings {
namespace {

/// A float, which has to outlive the array, a float64 array that broadcasts to (..., heads,
/// n_queries), or None.
strided_array numbers_of_rows(const py::object& numbers, double& one, numpy_array& rows) {
  if (!PyFloat_Check(numbers.ptr())) return rows = numpy_array(numbers, 1);
  one = PyFloat_AS_DOUBLE(numbers.ptr());
  return {&one, element_type::float64, sizeof one, {}, {}, 1};
}

/// New arrays for the named statistics; points the problem at them.
py::tuple make_statistics(const py::tuple& names, const extents& shape,
                          attention_problem& problem) {
  py::tuple arrays(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const statistic which = statistic_named(names[i].cast<std::string_view>());
    py::array array = is_count(which)
                          ? new_array<std::int64_t>(shape, {})
                          : new_array(shape, {}, problem.statistics.type(problem.compute));
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
      num_threads_(num_threads) {
  arrays_.compute = wide ? element_type::float64 : element_type::float32;
  arrays_.query = query_;
  arrays_.key = key_;
  arrays_.attn_mask = attn_mask_;
  if (attn_mask_)
    arrays_.mask_type = attn_mask_.is_boolean() ? mask_kind::boolean : mask_kind::additive;
  arrays_.begin = begin_;
  arrays_.end = end_;
  if (form.is_none()) return;
  arrays_.form = {.softcap = form.attr("softcap").cast<double>()};
  tables_ = {numpy_array(form.attr("distance_scale"), 2),
             numpy_array(form.attr("distance_bias"), 2)};
  arrays_.tables = {tables_.distance_scale, tables_.distance_bias};
  for (const numpy_array* table : {&tables_.distance_scale, &tables_.distance_bias})
    if (*table && table->layout().type != arrays_.compute)
      throw std::invalid_argument("a table of scores must have the compute type");
}

/// A call with a value and its normalizer: weights are None for softmax, or a Rule of
/// normalizers/_base.py, whose fields are read by name.
struct call::weighted {
  weighted(const call& given, const py::object& value, const py::object& output,
           const py::object& scale, const py::object& weights)
      : value_(value, 2), output_(output, 2), arrays(given.arrays_) {
    arrays.value = value_;
    arrays.output = output_;
    arrays.leading = common_leading({&arrays.query, &arrays.key, &arrays.value});
    arrays.scale = numbers_of_rows(scale, scale_, scales_);
    if (weights.is_none()) return;
    arrays.rule = normalizer_named(weights.attr("kind").cast<std::string>());
    arrays.numbers = {weights.attr("alpha").cast<double>(), weights.attr("k").cast<std::int64_t>(),
                      weights.attr("eps").cast<double>()};
    if (const std::string name(name_of(traits_of(arrays.rule).number)); !name.empty())
      arrays.number = numbers_of_rows(weights.attr(name.c_str()), number_, numbers_);
  }
  weighted(const weighted&) = delete;  // arrays refer to its numbers
  weighted& operator=(const weighted&) = delete;

 private:
  numpy_array value_, output_, scales_, numbers_;
  double scale_ = 0, number_ = 0;

 public:
  call_arrays arrays;
};

py::tuple call::attend(const py::object& value, const py::object& output,
                       const py::tuple& statistics, const py::object& scale,
                       const py::object& weights, bool wide_rows) {
  const weighted given(*this, value, output, scale, weights);
  attention_problem problem;
  problem.statistics.wide = wide_rows;
  problem.compute = given.arrays.compute;
  // Before the loop over the heads, so that a result that is too large fails at once.
  py::tuple arrays = make_statistics(statistics, given.arrays.rows(), problem);
  given.arrays.fill(problem);
  run_call(problem, num_threads_);
  has_lost_rows_ = bindings::has_lost_rows(problem);
  return arrays;
}

namespace {

/// Points at rows by the names of their statistics.
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

/// Rows of numbers to write to, or null.
double* rows_or_null(const py::dict& into, const char* name) {
  const py::object rows = named_or_none(into, name);
  if (rows.is_none()) return nullptr;
  return py::array_t<double>(py::reinterpret_borrow<py::array>(rows)).mutable_data();
}

}  // namespace

py::tuple call::gradients(const py::object& value, const py::object& grad_output_array,
                          const py::dict& into, const py::dict& saved, const py::dict& cotangents,
                          const py::object& scale, const py::object& weights) const {
  const weighted given(*this, value, named_or_none(saved, "output"), scale, weights);
  const numpy_array grad_output(grad_output_array, 2);
  const auto place = [&](const char* name) { return numpy_array(named_or_none(into, name), 2); };
  const auto row = [&](const char* name) { return numpy_array(named_or_none(into, name), 1); };
  const gradient_arrays gradients{.grad_output = grad_output,
                                  .query = place("query"),
                                  .key = place("key"),
                                  .value = place("value"),
                                  .attn_mask = place("attn_mask"),
                                  .tables = {place("distance_scale"), place("distance_bias")},
                                  .received = row("received"),
                                  .most_received = row("most_received")};
  const call_arrays& arrays = given.arrays;
  gradient_problem problem;
  point_at_rows(saved, problem.statistics);
  point_at_rows(cotangents, problem.cotangents);
  problem.d_number = rows_or_null(into, "bias");
  problem.d_alpha = rows_or_null(into, "alpha");
  py::array d_scale = new_array<double>(arrays.rows(), {});
  problem.d_scale = static_cast<double*>(d_scale.mutable_data());
  std::fill_n(problem.d_scale, d_scale.size(), 0.0);
  arrays.fill(problem);
  gradients.fill(problem, arrays.leading);
  py::object d_sink = py::none();
  if (traits_of(arrays.rule).number == row_number::sink && arrays.number &&
      !problem.heads.empty()) {
    d_sink = new_array<double>(arrays.rows(), {});
    problem.d_number = static_cast<double*>(py::array(d_sink).mutable_data());
  }
  run_call(problem, num_threads_);
  return py::make_tuple(d_scale, d_sink);
}

py::tuple call::curve(const py::array_t<double>& scales) const {
  call_arrays arrays = arrays_;
  arrays.leading = common_leading({&arrays.query, &arrays.key});
  curve_problem problem;
  problem.scales.assign(scales.data(), scales.data() + scales.size());
  py::tuple results(4);
  void** const places[] = {&problem.entropy, &problem.lse, &problem.mean, &problem.variance};
  for (std::size_t k = 0; k < 4; ++k) {
    py::array array = new_array(arrays.rows(), {scales.size()}, arrays.compute);
    *places[k] = array.mutable_data();
    results[k] = std::move(array);
  }
  arrays.fill(problem);
  run_released(num_threads_, [&](const execution& how) { run(problem, how); });
  return results;
}

namespace {

/// Fills a problem with the scales of a ladder.
template <class Problem>
void fill_ladder(const call_arrays& arrays, const py::array_t<double>& bases, std::int64_t n_scales,
                 Problem& problem) {
  arrays.fill(problem);
  problem.n_bases = bases.shape(bases.ndim() - 1);
  problem.n_scales = n_scales;
  const bool shared = bases.ndim() == 1;
  const std::int64_t rows = arrays.n_queries();
  if (!shared && bases.size() != count_entries(arrays.rows()) * problem.n_bases)
    throw std::invalid_argument("the bases of a ladder must be shared, or those of each row");
  problem.scale_row = shared ? 0 : problem.n_bases;
  for (std::size_t h = 0; h < problem.heads.size(); ++h)
    problem.heads[h].scale =
        bases.data() + (shared ? 0 : static_cast<std::int64_t>(h) * rows * problem.n_bases);
}

}  // namespace

py::tuple call::ladder(const py::array_t<double>& bases, std::int64_t n_scales) const {
  call_arrays arrays = arrays_;
  arrays.leading = common_leading({&arrays.query, &arrays.key});
  ladder_problem problem;
  fill_ladder(arrays, bases, n_scales, problem);
  py::tuple results(5);
  void** const places[] = {&problem.entropy, &problem.lse, &problem.max_weight,
                           &problem.first_weight};
  for (std::size_t k = 0; k < 4; ++k) {
    py::array array = new_array(arrays.rows(), {n_scales}, arrays.compute);
    *places[k] = array.mutable_data();
    results[k] = std::move(array);
  }
  py::array top = new_array(arrays.rows(), {}, arrays.compute);
  problem.top = top.mutable_data();
  results[4] = std::move(top);
  run_released(num_threads_, [&](const execution& how) { run(problem, how); });
  return results;
}

py::array call::received_ladder(const py::array_t<double>& bases, std::int64_t n_scales,
                                const py::array& max_weight, const py::array& top) const {
  call_arrays arrays = arrays_;
  arrays.leading = common_leading({&arrays.key, &arrays.query});  // heads may share these queries
  received_ladder_problem problem;
  fill_ladder(arrays, bases, n_scales, problem);
  const std::int64_t numbers = count_entries(arrays.leading) * arrays.n_keys();
  if (top.size() != numbers || max_weight.size() != numbers * n_scales)
    throw std::invalid_argument("max_weight and top must be those of the call itself");
  problem.max_weight = max_weight.data();
  problem.top = top.data();
  py::array received = new_array<double>(arrays.rows(), {n_scales});
  problem.received = static_cast<double*>(received.mutable_data());
  run_released(num_threads_, [&](const execution& how) { run(problem, how); });
  return received;
}

py::tuple call::solve(const py::array& target_array, double tolerance) const {
  const numpy_array target(target_array, 1);
  call_arrays arrays = arrays_;
  arrays.leading = common_leading({&arrays.query, &arrays.key});
  arrays.scale = target;
  solve_problem problem;
  problem.tolerance = tolerance;
  py::list results;
  const auto add = [&](py::array array) {
    results.append(array);
    return array.mutable_data();
  };
  const extents rows = arrays.rows();
  problem.scale = static_cast<double*>(add(new_array<double>(rows, {})));
  for (void** place : {&problem.entropy, &problem.lowest, &problem.highest})
    *place = add(new_array(rows, {}, arrays.compute));
  for (bool** place : {&problem.converged, &problem.feasible})
    *place = static_cast<bool*>(add(new_array<bool>(rows, {})));
  problem.iterations = static_cast<std::int64_t*>(add(new_array<std::int64_t>(rows, {})));
  arrays.fill(problem);
  run_released(num_threads_, [&](const execution& how) { run(problem, how); });
  return py::tuple(results);
}

py::tuple call::top_keys(const py::object& scale, std::int64_t k) const {
  call_arrays arrays = arrays_;
  numpy_array scales;
  double one = 0;
  arrays.leading = common_leading({&arrays.query, &arrays.key});
  arrays.scale = numbers_of_rows(scale, one, scales);
  top_keys_problem problem;
  problem.k = k;
  py::array index = new_array<std::int64_t>(arrays.rows(), {k});
  py::array score = new_array<double>(arrays.rows(), {k});
  problem.index = static_cast<std::int64_t*>(index.mutable_data());
  problem.score = static_cast<double*>(score.mutable_data());
  arrays.fill(problem);
  run_released(num_threads_, [&](const execution& how) { run(problem, how); });
  return py::make_tuple(index, score);
}

py::array call::count() const {
  call_arrays arrays = arrays_;
  for (strided_array* each : {&arrays.query, &arrays.key})
    *each = each->with_inner(each->dimension());  // all their axes count as inner
  arrays.tables = {};
  arrays.leading = common_leading({&arrays.attn_mask, &arrays.begin, &arrays.end});
  score_problem problem;
  arrays.fill(problem);
  py::array counts = new_array<std::int64_t>(arrays.rows(), {});
  auto* const out = static_cast<std::int64_t*>(counts.mutable_data());
  run_released(num_threads_, [&](const execution& how) { count_visible(problem, out, how); });
  return counts;
}

namespace {

/// Registers the core's traits of statistics and normalizers, for the tables of Python.
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
  py::class_<call>(module, "CoreCall")
      .def(py::init<const py::array&, const py::array&, const py::object&, const py::object&,
                    const py::object&, const py::object&, bool, int>())
      .def("attend", &call::attend, py::arg(), py::arg(), py::arg(), py::arg(), py::arg(),
           py::arg() = false)
      .def_property_readonly("has_lost_rows", &call::has_lost_rows)
      .def("show_leading", &call::show_leading)
      .def("gradients", &call::gradients)
      .def("curve", &call::curve)
      .def("ladder", &call::ladder)
      .def("received_ladder", &call::received_ladder)
      .def("top_keys", &call::top_keys)
      .def("solve", &call::solve)
      .def("count", &call::count);
}

}  // namespace attnscale::bindings
