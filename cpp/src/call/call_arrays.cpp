// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/detail/call_arrays.hpp"

#include <algorithm>

#include "attnscale/scale_law.hpp"

namespace attnscale {
namespace {

attention_head head_at(const call_arrays& call, const extents& index) {
  const auto at = [&](const strided_array& array) { return array.at(index, call.leading); };
  attention_head head;
  head.query = at(call.query);
  head.key = at(call.key);
  head.value = at(call.value);
  head.output = call.output.place(index, call.leading);
  head.attn_mask = at(call.attn_mask);
  head.scale = static_cast<const double*>(at(call.scale));
  head.begin = static_cast<const std::int64_t*>(at(call.begin));
  head.end = static_cast<const std::int64_t*>(at(call.end));
  head.tables = {at(call.tables.distance_scale), at(call.tables.distance_bias)};
  head.number = static_cast<const double*>(at(call.number));
  return head;
}

}  // namespace

void call_arrays::fill(score_problem& problem) const {
  problem.compute = compute;
  problem.n_queries = n_queries();
  problem.n_keys = n_keys();
  problem.head_dim = query.extent(1);
  problem.query = query.layout();
  problem.key = key.layout();
  problem.attn_mask = attn_mask.layout();
  problem.mask_type = mask_type;
  problem.tables = {tables.distance_scale.layout(), tables.distance_bias.layout()};
  problem.scale_row = scale.stride(1);
  problem.begin_row = begin.stride(1);
  problem.end_row = end.stride(1);
  problem.leading_keys = leading_keys;
  problem.form = form;
  problem.heads.reserve(static_cast<std::size_t>(count_entries(leading)));
  for_each_index(leading,
                 [&](const extents& index) { problem.heads.push_back(head_at(*this, index)); });
}

void call_arrays::fill(attention_problem& problem) const {
  fill(static_cast<score_problem&>(problem));
  problem.rule = rule;
  problem.numbers = numbers;
  problem.number_row = number.stride(1);
  problem.value_dim = value_dim();
  problem.value = value.layout();
  problem.output = output.layout();
}

void gradient_arrays::fill(gradient_problem& problem, const extents& leading) const {
  problem.grad_output = grad_output.layout();
  problem.d_query = query.layout();
  problem.d_key = key.layout();
  problem.d_value = value.layout();
  problem.d_attn_mask = attn_mask.layout();
  problem.gradients.reserve(problem.heads.size());
  for_each_index(leading, [&](const extents& index) {
    const auto place = [&](const strided_array& array) { return array.place(index, leading); };
    problem.gradients.push_back(
        {.grad_output = grad_output.at(index, leading),
         .query = place(query),
         .key = place(key),
         .value = place(value),
         .attn_mask = place(attn_mask),
         .tables = {place(tables.distance_scale), place(tables.distance_bias)},
         .received = {static_cast<double*>(place(received)),
                      static_cast<double*>(place(most_received))}});
  });
}

extents common_leading(std::initializer_list<const strided_array*> arrays) {
  int n = 0;
  for (const strided_array* each : arrays)
    if (*each) n = std::max(n, each->n_leading());
  extents shape(static_cast<std::size_t>(n), 1);
  for (int axis = 0; axis < n; ++axis)
    for (const strided_array* each : arrays) {
      std::int64_t& here = shape[static_cast<std::size_t>(axis)];
      if (here == 1) here = each->leading_extent(n - axis);
    }
  return shape;
}

row_array<double> scales_of_law(const scale_law& law, const key_intervals& intervals,
                                const call_arrays& call, const execution& how) {
  const std::int64_t head_dim = std::max<std::int64_t>(1, call.query.extent(1));
  if (!call.attn_mask || law.meaning() != n_means::visible_keys)
    return law_scales(law, intervals, nullptr, head_dim);
  // Heads without a mask or an interval of their own share their counts.
  call_arrays hiding;
  hiding.query = call.query.with_inner(call.query.dimension());
  hiding.key = call.key.with_inner(call.key.dimension());
  hiding.attn_mask = call.attn_mask;
  hiding.mask_type = call.mask_type;
  hiding.begin = call.begin;
  hiding.end = call.end;
  hiding.leading = common_leading({&call.attn_mask, &call.begin, &call.end});
  const extents rows = hiding.rows();
  row_array<std::int64_t> visible{{rows.begin(), rows.end()}, {}};
  visible.numbers.resize(static_cast<std::size_t>(count_entries(rows)));
  score_problem problem;
  hiding.fill(problem);
  count_visible(problem, visible.numbers.data(), how);
  return law_scales(law, intervals, &visible, head_dim);
}

}  // namespace attnscale
