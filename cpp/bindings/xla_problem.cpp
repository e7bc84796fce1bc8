// SPDX-License-Identifier: BSD-3-Clause
#include "xla_problem.hpp"

#include <algorithm>
#include <cmath>

#include "attnscale/scale_law.hpp"

namespace attnscale::bindings::xla {
namespace {

/// The axes before the core's: of arrays of rows one is the core's, of others two.
int n_inner(std::string_view name) {
  for (const std::string_view matrix :
       {"query", "key", "value", "attn_mask", "output", "grad_output"})
    if (name == matrix) return 2;
  return 1;
}

void check_finite(const array& given, const std::string& message) {
  if (!given || (given.type() != float32 && given.type() != float64)) return;
  const element_type type = element_type_of(given.type());
  for (std::int64_t i = 0; i < given.count(); ++i)
    if (!std::isfinite(detail::number_at(given.data(), type, i)))
      throw std::invalid_argument(message);
}

/// Rows that the core made for all leading axes as a batch, and so with one more axis of heads.
template <class Number>
strided_array of_heads(const row_array<Number>& rows) {
  extents shape(rows.extents.begin(), rows.extents.end());
  if (shape.size() > 1) shape.erase(shape.end() - 2);
  return {rows.numbers.data(),      element_type::float64,
          sizeof(Number),           shape,
          detail::row_major(shape), 1};
}

}  // namespace

void describe(const call_reader& call, const call_arrays& given, attention_problem& problem) {
  problem.compute = call.integer("wide") ? element_type::float64 : element_type::float32;
  problem.query = given.query.layout();
  problem.key = given.key.layout();
  problem.value = given.value.layout();
  problem.n_queries = given.query.extent(2);
  problem.n_keys = given.key.extent(2);
  problem.head_dim = given.query.extent(1);
  problem.value_dim = given.value ? given.value.extent(1) : 0;
  const array mask = call.argument("attn_mask");
  problem.mask_type = !mask                    ? mask_kind::none
                      : mask.type() == boolean ? mask_kind::boolean
                                               : mask_kind::additive;
  problem.attn_mask = given.mask.layout();
  problem.scale_row = given.scale.stride(1);
  problem.begin_row = given.begin.stride(1);
  problem.end_row = given.end.stride(1);
  problem.form = {.softcap = call.number("softcap")};
  problem.tables = {given.tables.distance_scale.layout(), given.tables.distance_bias.layout()};
  problem.rule = given.rule;
  problem.numbers = {call.number("alpha"), call.integer("k"), call.number("eps")};
  problem.number_row = given.number.stride();
}

call_arrays::call_arrays(const call_reader& call)
    : swapped(call.integer("swapped") != 0),
      query(call.argument("query").matrix(swapped)),
      key(call.argument("key").matrix(swapped)),
      value(call.argument("value").matrix(swapped)),
      mask(call.argument("attn_mask").matrix()),
      rule(normalizer_named(call.text_option("normalizer"))),
      number(call.argument(name_of(traits_of(rule).number))),
      scales_(call.argument("scale")),
      one_scale_(call.number("scale")) {
  const std::int64_t n_queries = query.extent(2), n_keys = key.extent(2);
  tables = {call.argument("distance_scale").matrix_of_distances(n_queries, n_keys),
            call.argument("distance_bias").matrix_of_distances(n_queries, n_keys)};
  read_leading(call);
  read_intervals(call);
  read_scale(call);
}

void call_arrays::read_leading(const call_reader& call) {
  for (int axis = 1; axis <= query.n_leading(); ++axis)
    leading.insert(leading.begin(), query.leading_extent(axis));
  for (const auto& [name, each] : call.arguments()) {
    const int inner = n_inner(name);
    const strided_array seen =
        each.matrix(swapped && inner == 2 && name != "attn_mask").with_inner(inner);
    for (int axis = 1; axis <= seen.n_leading(); ++axis) {
      std::int64_t& here = leading[leading.size() - static_cast<std::size_t>(axis)];
      if (here == 1) here = seen.leading_extent(axis);
    }
  }
}

void call_arrays::read_intervals(const call_reader& call) {
  interval_options options{query.extent(2), key.extent(2), {leading.data(), leading.size()}};
  options.causal = static_cast<causal_alignment>(call.integer("causal"));
  options.causal_offset = call.integer("causal_offset");
  options.window = {call.integer("left"), call.integer("right")};
  const rows_of<std::int64_t> lengths(call.argument("key_lengths"));
  const rows_of<std::int64_t> ids(call.argument("document_ids"));
  if (lengths) {  // one for each entry of the batch: its last axis is of length 1
    options.key_lengths = lengths.rows().integers();
    for (auto* part : {&options.key_lengths->extents, &options.key_lengths->strides})
      *part = part->first(part->size() - 1);
  }
  if (ids) options.document_ids = ids.rows().integers();
  intervals_ = key_intervals(options);
  if (intervals_.begin()) begin = of_heads(*intervals_.begin());
  if (intervals_.end()) end = of_heads(*intervals_.end());
}

void call_arrays::read_scale(const call_reader& call) {
  scale = scales_.rows();
  const std::string spelling = call.text_option("law");
  if (spelling.empty()) return;
  const scale_law law = scale_law::parse(spelling);
  const std::int64_t head_dim = std::max<std::int64_t>(1, query.extent(1));
  row_array<std::int64_t> visible;
  const bool counts_mask = mask && law.meaning() == n_means::visible_keys;
  if (counts_mask) {
    attention_problem problem;
    describe(call, *this, problem);
    visible.extents.assign(leading.begin(), leading.end());
    visible.extents.insert(visible.extents.end(), {1, problem.n_queries});
    visible.numbers.resize(
        static_cast<std::size_t>(count_entries(detail::joined(leading, {problem.n_queries}))));
    for_each_index(leading, [&](const extents& index) { problem.heads.push_back(head(index)); });
    count_visible(problem, visible.numbers.data(), call.how());
  }
  law_scales_ = law_scales(law, intervals_, counts_mask ? &visible : nullptr, head_dim);
  scale = of_heads(law_scales_);
}

void check_numbers(const call_reader& call) {
  check_finite(call.argument("scale"), "scale must be finite, got an array with NaN or infinity");
  for (const char* table : {"distance_scale", "distance_bias"})
    check_finite(call.argument(table),
                 std::string(table) +
                     " must be finite, got NaN or infinity; attn_mask and window hide keys");
}

}  // namespace attnscale::bindings::xla
