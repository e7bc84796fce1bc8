// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/attention_gradients.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "attnscale/detail/refuse.hpp"
#include "call/row_norm.hpp"

namespace attnscale {
namespace {

using detail::refuse;
using detail::text_of;

/// Gradients of statistics as rows of T; absent ones stay null.
template <class T>
class gradient_rows_of_statistics {
 public:
  gradient_rows_of_statistics(const statistic_gradients& given, const extents& rows) : rows_(rows) {
    using enum statistic;
    add(lse, given.lse);
    add(entropy, given.entropy);
    add(max_score, given.max_score);
    add(mean_score, given.mean_score);
    add(score_variance, given.score_variance);
    add(concentration, given.concentration);
    add(max_weight, given.max_weight);
    add(renyi2, given.renyi2);
  }
  bool any() const { return !all_.empty(); }
  row_outputs places() {
    row_outputs places;
    for (auto& [which, numbers] : all_) places[which] = numbers.data();
    return places;
  }

 private:
  void add(statistic which, const number_or_array<double>& given) {
    if (!given) return;
    const std::string name(name_of(which));
    const strided_array values(given.rows(), 0);
    check_broadcast(name.c_str(), values, rows_, "(..., heads, n_queries)");
    std::vector<T>& numbers = all_.emplace_back(which, std::vector<T>()).second;
    for_each_index(rows_, [&](const extents& index) {
      numbers.push_back(static_cast<T>(*static_cast<const double*>(values.at(index, rows_))));
    });
  }

  const extents& rows_;
  std::vector<std::pair<statistic, std::vector<T>>> all_;
};

/// Hands the results of the forward pass to the problem; refuses those of another call.
void read_forward(const call_description& call, const backward_inputs& in,
                  gradient_problem& problem) {
  if (in.output && in.output.shape() != joined(call.rows(), {call.value_dim()}))
    refuse("forward must be of the same call, got an output of shape " +
           text_of(in.output.shape()));
  for (const auto& [which, rows] : in.rows) {
    if (rows.shape() != call.rows())
      refuse("forward must be of the same call, whose rows are " + text_of(call.rows()) + ", got " +
             std::string(name_of(which)) + " of shape " + text_of(rows.shape()));
    problem.statistics[which] = rows.place({}, {});
  }
}

/// Sets the gradient of the scale to 0 for rows without visible keys, also where the query has a
/// NaN.
void clear_unseen(const gradient_problem& problem, const extents& rows, const execution& how) {
  const auto n = static_cast<std::size_t>(count_entries(rows));
  if (std::all_of(problem.d_scale, problem.d_scale + n, [](double x) { return std::isfinite(x); }))
    return;
  std::vector<std::int64_t> visible(n);
  count_visible(problem, visible.data(), how);
  for (std::size_t row = 0; row < n; ++row)
    if (visible[row] == 0) problem.d_scale[row] = 0;
}

template <class T>
score_tables<row_array<double>> backward(call_description& call, const strided_array& query,
                                         const strided_array& key, const backward_inputs& in,
                                         const backward_outputs& out) {
  const attention_options& options = call.options();
  const extents rows = call.rows(), output = joined(rows, {call.value_dim()});
  gradient_rows_of_statistics<T> cotangents(in.of, rows);
  if (!traits_of(options.normalizer.rule).is_exponential && cotangents.any())
    refuse("statistics have gradients only under a softmax, with or without a sink");
  if (in.grad_output && in.grad_output.shape() != output)
    refuse("grad_output must have the shape of the output, " + text_of(output) + ", got " +
           text_of(in.grad_output.shape()));
  if (!in.grad_output && !cotangents.any())
    refuse("grad_output or the gradient of a statistic must be given, got none of them");
  gradient_problem problem;
  read_forward(call, in, problem);
  problem.cotangents = cotangents.places();
  problem.d_scale = out.scale;
  problem.d_number = out.number;
  problem.d_alpha = out.alpha;
  call.set_output(in.output);
  call.fill(problem);
  const gradient_arrays gradients{.grad_output = in.grad_output,
                                  .query = out.query,
                                  .key = out.key,
                                  .value = out.value,
                                  .attn_mask = out.attn_mask,
                                  .tables = call.zero_tables(out.tables)};
  gradients.fill(problem, call.leading());
  run(problem, call.how());
  if (options.qk_norm != row_norm::none) {
    detail::through_norm(query, options.qk_norm, static_cast<T*>(out.query.place({}, {})));
    detail::through_norm(key, options.qk_norm, static_cast<T*>(out.key.place({}, {})));
  }
  clear_unseen(problem, rows, call.how());
  return call.table_gradients();
}

}  // namespace

score_tables<row_array<double>> run_backward(call_description& call, const strided_array& query,
                                             const strided_array& key, const backward_inputs& in,
                                             const backward_outputs& out) {
  return call.arrays().compute == element_type::float64
             ? backward<double>(call, query, key, in, out)
             : backward<float>(call, query, key, in, out);
}

}  // namespace attnscale
