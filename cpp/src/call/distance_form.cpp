// SPDX-License-Identifier: BSD-3-Clause
#include "call/distance_form.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <variant>

#include "attnscale/detail/refuse.hpp"
#include "call/row_arrays.hpp"

namespace attnscale::detail {
namespace {

/// Refuses a table whose axes but the last do not broadcast to (..., heads).
void check_table_leading(const char* name, const extents& seen, const extents& leading) {
  bool fits = seen.size() <= leading.size();
  for (std::size_t axis = 1; fits && axis <= seen.size(); ++axis)
    fits =
        seen[seen.size() - axis] == 1 || seen[seen.size() - axis] == leading[leading.size() - axis];
  if (!fits)
    refuse(std::string(name) + " must broadcast to (..., heads) = " + text_of(leading) +
           " before its last axis, got " + text_of(seen));
}

/// Matrix with numbers[..., n_queries - 1 - i + j] at (i, j).
template <class Number>
strided_array over_pairs(const row_array<Number>& numbers, std::int64_t n_queries,
                         std::int64_t n_keys) {
  extents shape(numbers.extents.begin(), numbers.extents.end()), strides = row_major(shape);
  strides.back() = -1;
  strides.push_back(1);
  shape.back() = n_queries;
  shape.push_back(n_keys);
  return {numbers.numbers.data() + n_queries - 1,
          element_type_of<Number>,
          sizeof(Number),
          shape,
          strides,
          2};
}

}  // namespace

const scale_law* law_of_distance(const attention_options& options) {
  const std::optional<scale_law>& law = options.scale.law();
  return law && law->meaning() == n_means::query_key_distance ? &*law : nullptr;
}

row_array<double> table_matrix::numbers() const {
  if (matrix.layout().type == element_type::float64) return wide;
  return {narrow.extents, {narrow.numbers.begin(), narrow.numbers.end()}};
}

void distance_form::read(const attention_options& options, const key_intervals& intervals,
                         std::int64_t head_dim, call_arrays& arrays) {
  const scale_law* law = law_of_distance(options);
  if (!law && !options.distance_scale && !options.distance_bias) return;
  n_queries_ = arrays.n_queries();
  n_keys_ = arrays.n_keys();
  compute_ = arrays.compute;
  distances_ = intervals.distances();
  reach_ = intervals.reach();
  table_values scale = read_table("distance_scale", options.distance_scale, arrays.leading);
  table_values bias = read_table("distance_bias", options.distance_bias, arrays.leading);
  if (law) add_law(*law, head_dim, scale, bias);
  set_matrix(tables_.distance_scale, scale);
  set_matrix(tables_.distance_bias, bias);
  arrays.tables = {tables_.distance_scale.matrix, tables_.distance_bias.matrix};
}

score_tables<strided_array> distance_form::zeros(const score_tables<bool>& wanted) {
  wanted_ = wanted;
  if (wanted.distance_scale) set_zeros(of_tables_.distance_scale, tables_.distance_scale);
  if (wanted.distance_bias) set_zeros(of_tables_.distance_bias, tables_.distance_bias);
  return {of_tables_.distance_scale.matrix, of_tables_.distance_bias.matrix};
}

score_tables<row_array<double>> distance_form::gradients(const attention_options& options) const {
  score_tables<row_array<double>> found;
  if (wanted_.distance_scale)
    found.distance_scale = gradient_of(options.distance_scale, of_tables_.distance_scale, true);
  if (wanted_.distance_bias)
    found.distance_bias = gradient_of(options.distance_bias, of_tables_.distance_bias, false);
  return found;
}

row_array<double> distance_form::gradient_of(const distance_table& table,
                                             const table_matrix& of_distances,
                                             bool is_scale) const {
  row_array<double> found = table.at(distances_);
  std::fill(found.numbers.begin(), found.numbers.end(), 0.0);
  if (!of_distances.matrix) return found;
  const row_array<double> gradient = of_distances.numbers();
  const bool by_law = is_scale && has_law_;
  const strided_array target(found, 1), law(of_law_, 1), steps(distances_, 1);
  const extents lead(gradient.extents.begin(), gradient.extents.end() - 1);
  const std::int64_t last = std::max<std::int64_t>(target.extent(1) - 1, 0);
  const double* from = gradient.numbers.data();
  for_each_index(lead, [&](const extents& index) {
    auto* const to = static_cast<double*>(target.place(index, lead));
    const auto* step = static_cast<const std::int64_t*>(steps.at(index, lead));
    const auto* factor = by_law ? static_cast<const double*>(law.at(index, lead)) : nullptr;
    for (std::int64_t k = 0; k < gradient.extents.back(); ++k, ++from) {
      const std::int64_t t = table.is_function() ? k : std::min(std::abs(step[k]), last);
      if (target.extent(1) > 0) to[t] += factor ? *from * factor[k] : *from;
    }
  });
  return found;
}

distance_form::table_values distance_form::read_table(const char* name, const distance_table& table,
                                                      const extents& leading) const {
  if (!table) return std::nullopt;
  row_array<double> values = table.at(distances_);
  const std::int64_t n = distances_.extents.back();
  const strided_array given(values, 1);
  if (table.is_function()) {
    if (given.dimension() == 0 || given.shape().back() != n)
      refuse(std::string(name) + " must return one number for each of " + text_of(n) +
             " distances on its last axis, got shape " + text_of(given.shape()));
  } else if (given.dimension() == 0 || given.shape().back() <= reach_) {
    refuse(std::string(name) + " must have an entry for each distance 0 ... " + text_of(reach_) +
           " on its last axis, got shape " + text_of(given.shape()));
  }
  check_table_leading(name, given.leading(), leading);
  if (!table.is_function()) values = look_up(given);
  for (const double each : values.numbers)
    if (!std::isfinite(each))
      refuse(std::string(name) +
             " must be finite, got NaN or infinity; attn_mask and window hide keys");
  return values;
}

/// Entry t of the last axis for the distances t and -t.
row_array<double> distance_form::look_up(const strided_array& table) const {
  const strided_array steps(distances_, 1);
  const extents lead = common_leading({&table, &steps});
  const std::int64_t n = distances_.extents.back();
  row_array<double> values{{lead.begin(), lead.end()}, {}};
  values.extents.push_back(n);
  for_each_index(lead, [&](const extents& index) {
    const auto* entry = static_cast<const double*>(table.at(index, lead));
    const auto* step = static_cast<const std::int64_t*>(steps.at(index, lead));
    for (std::int64_t k = 0; k < n; ++k)
      values.numbers.push_back(reach_ < 0 ? 0 : entry[std::min(std::abs(step[k]), reach_)]);
  });
  return values;
}

void distance_form::add_law(const scale_law& law, std::int64_t head_dim, table_values& scale,
                            table_values& bias) {
  has_law_ = true;
  of_law_ = row_array<double>{distances_.extents, {}};
  row_array<double> added = of_law_;
  const auto* both = std::get_if<laws::scale_invariant>(&law.alternatives());
  for (const std::int64_t distance : distances_.numbers) {
    const double step = std::abs(static_cast<double>(distance));
    of_law_.numbers.push_back(law.scale(step, head_dim) * std::sqrt(static_cast<double>(head_dim)));
    if (both) added.numbers.push_back(-2 * std::log1p(step / both->tau));
  }
  scale = scale ? combine(*scale, of_law_, std::multiplies<>()) : of_law_;
  if (both) bias = bias ? combine(*bias, added, std::plus<>()) : added;
}

void distance_form::set_matrix(table_matrix& table, const table_values& values) const {
  if (!values || n_queries_ == 0 || n_keys_ == 0) return;
  if (compute_ == element_type::float64) {
    table.wide = *values;
    table.matrix = over_pairs(table.wide, n_queries_, n_keys_);
  } else {
    table.narrow = {values->extents, {values->numbers.begin(), values->numbers.end()}};
    table.matrix = over_pairs(table.narrow, n_queries_, n_keys_);
  }
}

void distance_form::set_zeros(table_matrix& into, const table_matrix& like) const {
  if (!like.matrix) return;
  row_array<double> zeros = like.numbers();
  std::fill(zeros.numbers.begin(), zeros.numbers.end(), 0.0);
  set_matrix(into, zeros);
}

}  // namespace attnscale::detail
