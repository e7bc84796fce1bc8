// SPDX-License-Identifier: BSD-3-Clause
#include "xla_problem.hpp"

#include <cmath>
#include <unordered_set>

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

void check_lengths(const array& given, std::int64_t n_keys) {
  if (!given) return;
  const rows_of<std::int64_t> lengths(given);
  for (const std::int64_t length : lengths.numbers())
    if (length < 0 || length > n_keys)
      throw std::invalid_argument("key_lengths must be between 0 and the number of keys, " +
                                  std::to_string(n_keys) + ", got " + std::to_string(length));
}

void check_documents(const array& given) {
  if (!given || given.count() == 0) return;
  const rows_of<std::int64_t> rows(given);
  const std::vector<std::int64_t>& ids = rows.numbers();
  const auto n_keys = static_cast<std::size_t>(given.shape().back());
  for (std::size_t start = 0; start < ids.size(); start += n_keys) {
    std::unordered_set<std::int64_t> seen;
    for (std::size_t i = start; i < start + n_keys; ++i)
      if ((i == start || ids[i] != ids[i - 1]) && !seen.insert(ids[i]).second)
        throw std::invalid_argument("each document must be one run of document_ids, got " +
                                    std::to_string(ids[i]) + " in more runs");
  }
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
  problem.scale_row = given.scale.stride();
  problem.begin_row = given.begin.stride();
  problem.end_row = given.end.stride();
  problem.form = {.softcap = call.number("softcap")};
  problem.tables = {given.tables.distance_scale.layout(), given.tables.distance_bias.layout()};
  problem.rule = given.rule;
  problem.numbers = {call.number("alpha"), call.integer("k"), call.number("eps")};
  problem.number_row = given.number.stride();
}

extents leading_shape(const call_reader& call, const call_arrays& given) {
  extents shape;
  for (int axis = 1; axis <= given.query.n_leading(); ++axis)
    shape.insert(shape.begin(), given.query.leading_extent(axis));
  for (const auto& [name, each] : call.arguments()) {
    const int inner = n_inner(name);
    const strided_array seen =
        each.matrix(given.swapped && inner == 2 && name != "attn_mask").with_inner(inner);
    for (int axis = 1; axis <= seen.n_leading(); ++axis) {
      std::int64_t& here = shape[shape.size() - static_cast<std::size_t>(axis)];
      if (here == 1) here = seen.leading_extent(axis);
    }
  }
  return shape;
}

void check_numbers(const call_reader& call, const call_arrays& given) {
  check_finite(call.argument("scale"), "scale must be finite, got an array with NaN or infinity");
  for (const char* table : {"distance_scale", "distance_bias"})
    check_finite(call.argument(table),
                 std::string(table) +
                     " must be finite, got NaN or infinity; attn_mask and window hide keys");
  check_lengths(call.argument("key_lengths"), given.key.extent(2));
  check_documents(call.argument("document_ids"));
}

}  // namespace attnscale::bindings::xla
