// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>

#include "xla_problem.hpp"

namespace attnscale::bindings::xla {
namespace {

/// Rows (..., heads, n_queries) in the core's element type, broadcast to the full shape.
class full_rows {
 public:
  const void* place(const array& given, const extents& shape, std::int64_t n_queries) {
    if (given.shape() == joined(shape, {n_queries}) && given.type() != int32) return given.data();
    if (given.type() == int32 || given.type() == int64)
      return repeat(rows_of<std::int64_t>(given), shape, n_queries, integers_);
    if (given.type() == float64) return repeat(rows_of<double>(given), shape, n_queries, doubles_);
    return repeat(rows_of<double>(given), shape, n_queries, floats_);
  }

 private:
  template <class From, class To>
  static const void* repeat(const rows_of<From>& rows, const extents& shape, std::int64_t n_queries,
                            std::vector<std::vector<To>>& into) {
    std::vector<To>& all = into.emplace_back();
    for_each_index(shape, [&](const extents& index) {
      const From* first = rows.at(index, shape);
      for (std::int64_t i = 0; i < n_queries; ++i)
        all.push_back(static_cast<To>(first[i * rows.stride()]));
    });
    return all.data();
  }

  std::vector<std::vector<std::int64_t>> integers_;
  std::vector<std::vector<double>> doubles_;
  std::vector<std::vector<float>> floats_;
};

/// Gradients of row numbers, summed over the axes along which the caller's array broadcasts.
class row_gradient {
 public:
  row_gradient(const array& wanted, const extents& shape, std::int64_t n_queries)
      : wanted_(wanted), shape_(shape), n_queries_(n_queries) {
    numbers_.resize(static_cast<std::size_t>(count_entries(joined(shape, {n_queries}))));
  }
  std::vector<double>& numbers() { return numbers_; }
  double* data() { return numbers_.data(); }

  void write() const {
    if (!wanted_) return;
    std::vector<double> sums(static_cast<std::size_t>(wanted_.count()));
    const extents sizes = wanted_.shape();
    const strided_array rows(sums.data(), element_type::float64, sizeof(double), sizes,
                             row_major(sizes), 1);
    std::size_t from = 0;
    for_each_index(shape_, [&](const extents& index) {
      auto* first = static_cast<double*>(const_cast<void*>(rows.at(index, shape_)));
      for (std::int64_t i = 0; i < n_queries_; ++i) first[i * rows.stride(1)] += numbers_[from++];
    });
    if (wanted_.type() == float64)
      std::copy(sums.begin(), sums.end(), static_cast<double*>(wanted_.data()));
    else
      std::transform(sums.begin(), sums.end(), static_cast<float*>(wanted_.data()),
                     [](double sum) { return static_cast<float>(sum); });
  }

 private:
  array wanted_;
  const extents& shape_;
  std::int64_t n_queries_;
  std::vector<double> numbers_;
};

/// Arrays to which gradients are added, zero at first.
gradient_arrays places_of(const call_reader& call, const xla_call_arrays& given) {
  const auto zeros = [&](std::string_view name) {
    const array found = call.result(name);
    if (found)
      std::memset(found.data(), 0, static_cast<std::size_t>(found.count() * size_of(found.type())));
    return found;
  };
  const std::int64_t n_queries = given.n_queries(), n_keys = given.n_keys();
  return {.grad_output = call.argument("grad_output").matrix(given.swapped),
          .query = zeros("query").matrix(given.swapped),
          .key = zeros("key").matrix(given.swapped),
          .value = zeros("value").matrix(given.swapped),
          .attn_mask = zeros("attn_mask").matrix(),
          .tables = {zeros("distance_scale").matrix_of_distances(n_queries, n_keys),
                     zeros("distance_bias").matrix_of_distances(n_queries, n_keys)}};
}

/// Sets the gradient to 0 for a query that holds NaN and sees no keys.
void clear_rows_without_keys(const gradient_problem& problem, std::vector<double>& gradient,
                             const execution& how) {
  if (std::all_of(gradient.begin(), gradient.end(), [](double x) { return std::isfinite(x); }))
    return;
  std::vector<std::int64_t> counts(gradient.size());
  count_visible(problem, counts.data(), how);
  for (std::size_t i = 0; i < gradient.size(); ++i)
    if (counts[i] == 0) gradient[i] = 0;
}

/// Points the problem at saved results of the forward pass, and at the gradients of statistics.
void read_rows(const call_reader& call, const extents& shape, full_rows& rows,
               gradient_problem& problem) {
  for (const std::string_view name : statistic_names) {
    const std::string text(name);
    const auto place = [&](const array& given) -> void* {
      return given ? const_cast<void*>(rows.place(given, shape, problem.n_queries)) : nullptr;
    };
    problem.statistics[statistic_named(name)] = place(call.argument("saved_" + text));
    problem.cotangents[statistic_named(name)] = place(call.argument("grad_" + text));
  }
}

}  // namespace

void run_gradients(const call_reader& call) {
  xla_call_arrays given(call);
  given.output = call.argument("output").matrix(given.swapped);
  const gradient_arrays gradients = places_of(call, given);
  gradient_problem problem;
  given.fill(problem);
  gradients.fill(problem, given.leading);
  const extents& shape = given.leading;
  full_rows rows;
  read_rows(call, shape, rows, problem);
  row_gradient scale(call.result("scale"), shape, problem.n_queries);
  row_gradient sink(call.result("sink"), shape, problem.n_queries);
  problem.d_scale = scale.data();
  if (given.number && traits_of(given.rule).number == row_number::sink)
    problem.d_number = sink.data();
  const execution how = call.how();
  run(problem, how);
  clear_rows_without_keys(problem, scale.numbers(), how);
  scale.write();
  sink.write();
}

}  // namespace attnscale::bindings::xla
