// SPDX-License-Identifier: BSD-3-Clause
//
// attend, curve and count_visible: arrays that Python has checked become the core's problems.
// Docstrings and messages live in Python; _core.pyi lists the signatures.

#include "attnscale/normalizer_traits.hpp"
#include "options.hpp"

namespace attnscale::bindings {
namespace {

/// A float, a float64 array that broadcasts to (..., heads, n_queries), or None.
struct row_operand {
  double one = 0;
  bool given = false;
  operand rows;

  row_operand() = default;
  explicit row_operand(const py::object& scale) : given(!scale.is_none()) {
    if (PyFloat_Check(scale.ptr())) {
      one = PyFloat_AS_DOUBLE(scale.ptr());
    } else {
      rows = operand(scale, 1);
    }
  }
  const double* at(const extents& index, const extents& shape) const {
    if (!given) return nullptr;
    return rows ? static_cast<const double*>(rows.at(index, shape)) : &one;
  }
  std::ptrdiff_t row() const { return rows ? rows.stride(1) : 0; }
};

/// None for softmax, or a Rule of normalizers/_base.py: its fields by name.
struct rule_operand {
  normalizer kind = normalizer::softmax;
  normalizer_numbers numbers;
  row_numbers<row_operand> of_row;

  explicit rule_operand(const py::object& rule) {
    if (rule.is_none()) return;
    kind = normalizer_named(rule.attr("kind").cast<std::string>());
    numbers = {rule.attr("alpha").cast<double>(), rule.attr("k").cast<std::int64_t>(),
               rule.attr("eps").cast<double>()};
    of_row = {row_operand(rule.attr("sink")), row_operand(rule.attr("bias")),
              row_operand(rule.attr("factor"))};
  }
  void describe(attention_problem& problem) const {
    problem.rule = kind;
    problem.numbers = numbers;
    problem.number_row = of_row.sink.row() + of_row.bias.row() + of_row.factor.row();
  }
  row_numbers<const double*> at(const extents& index, const extents& shape) const {
    return {of_row.sink.at(index, shape), of_row.bias.at(index, shape),
            of_row.factor.at(index, shape)};
  }
};

/// The statistics in the order of statistic_names; bit k of `wanted` asks for the k-th one. Those
/// not asked for stay None and null.
py::tuple make_statistics(unsigned wanted, const extents& shape, attention_problem& problem) {
  py::tuple arrays(statistic_names.size());
  for (std::size_t k = 0; k < statistic_names.size(); ++k) {
    arrays[k] = py::none();
    if ((wanted >> k & 1u) == 0) continue;
    const auto which = static_cast<statistic>(k);
    py::array array = is_count(which) ? py::array(new_counts(shape, problem.n_queries))
                                      : new_array(shape, {problem.n_queries}, problem.compute);
    problem.statistics[which] = array.mutable_data();
    arrays[k] = array;
  }
  return arrays;
}

/// Writes `output` (None: no output wanted) and returns the statistics asked for.
py::tuple attend(const py::array& query_array, const py::array& key_array,
                 const py::object& value_array, const py::object& output_array, unsigned statistics,
                 const py::object& scale_object, const py::object& mask,
                 const py::object& key_lengths, std::int64_t left, std::int64_t right,
                 bool bottom_right, double softcap, int num_threads, const py::object& factor,
                 const py::object& offset, const py::object& rule_or_none) {
  const operand query(query_array, 2), key(key_array, 2), value(value_array, 2),
      output(output_array, 2);
  const row_operand scale(scale_object);
  const rule_operand rule(rule_or_none);
  const options how(mask, key_lengths, left, right, bottom_right, softcap, num_threads);
  const score_tables tables(factor, offset);
  const extents shape = leading_shape({&query, &key, &value});

  attention_problem problem;
  describe(problem, query, key);
  describe(problem, how, kind_of(mask));
  const bool wide = is_double(query) || is_double(key) || is_double(value);
  problem.compute = wide ? element_type::float64 : element_type::float32;
  tables.describe(problem);
  problem.value = value.layout();
  problem.output = output.layout();
  problem.value_dim = value ? value.extent(1) : 0;
  problem.scale_row = scale.row();
  rule.describe(problem);
  const py::tuple arrays = make_statistics(statistics, shape, problem);
  problem.heads.reserve(static_cast<std::size_t>(count(shape)));
  for_each_index(shape, [&](const extents& index) {
    problem.heads.push_back({query.at(index, shape), key.at(index, shape), value.at(index, shape),
                             const_cast<void*>(output.at(index, shape)), how.mask.at(index, shape),
                             scale.at(index, shape),
                             key_length(how, index, shape, problem.n_keys)});
    tables.set(problem.heads.back(), index, shape);
    problem.heads.back().numbers = rule.at(index, shape);
  });
  run_released(num_threads, [&](const execution& run_how) { run(problem, run_how); });
  return arrays;
}

/// Returns (entropy, lse, mean, variance), each (..., heads, n_queries, scales).
py::tuple curve(const py::array& query_array, const py::array& key_array,
                const py::array_t<double>& scales, const py::object& mask,
                const py::object& key_lengths, std::int64_t left, std::int64_t right,
                bool bottom_right, double softcap, int num_threads, const py::object& factor,
                const py::object& offset) {
  const operand query(query_array, 2), key(key_array, 2);
  const options how(mask, key_lengths, left, right, bottom_right, softcap, num_threads);
  const score_tables tables(factor, offset);
  const extents shape = leading_shape({&query, &key});

  curve_problem problem;
  describe(problem, query, key);
  describe(problem, how, kind_of(mask));
  problem.compute =
      is_double(query) || is_double(key) ? element_type::float64 : element_type::float32;
  tables.describe(problem);
  problem.scales.assign(scales.data(), scales.data() + scales.size());
  py::tuple results(4);
  void** const places[] = {&problem.entropy, &problem.lse, &problem.mean, &problem.variance};
  for (std::size_t k = 0; k < 4; ++k) {
    py::array array = new_array(shape, {problem.n_queries, scales.size()}, problem.compute);
    *places[k] = array.mutable_data();
    results[k] = array;
  }
  problem.heads.reserve(static_cast<std::size_t>(count(shape)));
  for_each_index(shape, [&](const extents& index) {
    problem.heads.push_back({query.at(index, shape), key.at(index, shape), nullptr, nullptr,
                             how.mask.at(index, shape), nullptr,
                             key_length(how, index, shape, problem.n_keys)});
    tables.set(problem.heads.back(), index, shape);
  });
  run_released(num_threads, [&](const execution& run_how) { run(problem, run_how); });
  return results;
}

/// Keys that each row may see, over the leading axes of the mask and of key_lengths alone.
py::array count_visible_keys(std::int64_t n_queries, std::int64_t n_keys, const py::object& mask,
                             const py::object& key_lengths, std::int64_t left, std::int64_t right,
                             bool bottom_right, int num_threads) {
  const options how(mask, key_lengths, left, right, bottom_right, 0.0, num_threads);
  const extents shape = leading_shape({&how.mask, &how.key_lengths});
  score_problem problem;
  describe(problem, how, kind_of(mask));
  problem.n_queries = n_queries;
  problem.n_keys = n_keys;
  py::array_t<std::int64_t> counts = new_counts(shape, n_queries);
  problem.heads.reserve(static_cast<std::size_t>(count(shape)));
  for_each_index(shape, [&](const extents& index) {
    attention_head head;
    head.mask = how.mask.at(index, shape);
    head.key_length = key_length(how, index, shape, n_keys);
    problem.heads.push_back(head);
  });
  std::int64_t* const out = counts.mutable_data();
  run_released(num_threads,
               [&](const execution& run_how) { count_visible(problem, out, run_how); });
  return counts;
}

py::tuple names_of_statistics() {
  py::tuple names(statistic_names.size());
  for (std::size_t k = 0; k < names.size(); ++k)
    names[k] = py::str(statistic_names[k].data(), statistic_names[k].size());
  return names;
}

}  // namespace

void register_attention(py::module_& module) {
  module.attr("statistic_names") = names_of_statistics();
  module.def("attend", &attend);
  module.def("curve", &curve);
  module.def("count_visible", &count_visible_keys);
}

}  // namespace attnscale::bindings
