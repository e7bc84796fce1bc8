// SPDX-License-Identifier: BSD-3-Clause
#include "xla_problem.hpp"

#include <algorithm>
#include <cmath>

#include "attnscale/scale_law.hpp"

namespace attnscale::bindings::xla {
namespace {

/// Number of the core's axes: one for arrays of rows, two for others.
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

}  // namespace

xla_call_arrays::xla_call_arrays(const call_reader& call)
    : swapped(call.integer("swapped") != 0),
      scales_(call.argument("scale")),
      one_scale_(call.number("scale")) {
  compute = call.integer("wide") ? element_type::float64 : element_type::float32;
  query = call.argument("query").matrix(swapped);
  key = call.argument("key").matrix(swapped);
  value = call.argument("value").matrix(swapped);
  const array mask = call.argument("attn_mask");
  attn_mask = mask.matrix();
  if (mask) mask_type = mask.type() == boolean ? mask_kind::boolean : mask_kind::additive;
  tables = {call.argument("distance_scale").matrix_of_distances(n_queries(), n_keys()),
            call.argument("distance_bias").matrix_of_distances(n_queries(), n_keys())};
  form = {.softcap = call.number("softcap")};
  rule = normalizer_named(call.text_option("normalizer"));
  numbers = {call.number("alpha"), call.integer("k"), call.number("eps")};
  numbers_.read(call.argument(name_of(traits_of(rule).number)));
  number = numbers_.rows();
  read_leading(call);
  read_intervals(call);
  read_scale(call);
}

template <class Number>
strided_array xla_call_arrays::of_heads(const row_array<Number>& rows) const {
  extents shape(rows.extents.begin(), rows.extents.end());
  if (shape.size() > leading.size() + 1) shape.erase(shape.size() - 2);
  return {rows.numbers.data(), element_type::float64, sizeof(Number), shape, row_major(shape), 1};
}

void xla_call_arrays::read_leading(const call_reader& call) {
  leading = query.leading();
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

void xla_call_arrays::read_intervals(const call_reader& call) {
  interval_options options{query.extent(2), key.extent(2), leading};
  options.causal = static_cast<causal_alignment>(call.integer("causal"));
  options.causal_offset = call.integer("causal_offset");
  options.window = {call.integer("left"), call.integer("right")};
  const rows_of<std::int64_t> lengths(call.argument("key_lengths"));
  const rows_of<std::int64_t> ids(call.argument("document_ids"));
  if (lengths) {  // one per batch entry: its last axis has length 1
    options.key_lengths = lengths.rows().integers();
    for (auto* part : {&options.key_lengths->extents, &options.key_lengths->strides})
      *part = part->first(part->size() - 1);
  }
  if (ids) options.document_ids = ids.rows().integers();
  intervals_ = key_intervals(options);
  if (intervals_.begin()) begin = of_heads(*intervals_.begin());
  if (intervals_.end()) end = of_heads(*intervals_.end());
}

void xla_call_arrays::read_scale(const call_reader& call) {
  scale = scales_.rows();
  if (!scale) scale = {&one_scale_, element_type::float64, sizeof one_scale_, {}, {}, 1};
  const std::string spelling = call.text_option("law");
  if (spelling.empty()) return;
  law_scales_ = scales_of_law(scale_law::parse(spelling), intervals_, *this, call.how());
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
