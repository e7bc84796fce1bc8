// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/detail/call_description.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "attnscale/detail/intervals.hpp"
#include "attnscale/detail/refuse.hpp"
#include "attnscale/normalizer_traits.hpp"
#include "call/distance_form.hpp"
#include "call/row_norm.hpp"

namespace attnscale {

using detail::execution_of;
using detail::refuse;
using detail::text_of;

namespace {

/// Broadcasts one extent into another; false if they do not fit.
bool broadcast_extent(std::int64_t& broadcast, std::int64_t extent) {
  if (broadcast == 1) broadcast = extent;
  return extent == broadcast || extent == 1;
}

extents batch_shape(const strided_array& array) {
  const extents& shape = array.shape();
  return {shape.begin(), shape.size() > 3 ? shape.end() - 3 : shape.begin()};
}

/// Batch axes (all leading axes but the heads) of the result.
extents broadcast_batch(std::initializer_list<named_array> arrays) {
  int n = 0;
  for (const auto& [name, array] : arrays) n = std::max(n, array->n_leading() - 1);
  extents batch(static_cast<std::size_t>(n), 1);
  bool fits = true;
  std::string seen;
  for (const auto& [name, array] : arrays) {
    if (!*array) continue;
    for (int axis = 0; axis < n; ++axis)
      fits &= broadcast_extent(batch[std::size_t(axis)], array->leading_extent(n - axis + 1));
    seen += (seen.empty() ? "" : " and ") + std::string(name) + " " + text_of(batch_shape(*array));
  }
  if (!fits) refuse("the batch axes must broadcast, got " + seen);
  return batch;
}

/// Number of heads of the result: the query's under enable_gqa, else all equal or 1.
std::int64_t broadcast_heads(std::initializer_list<named_array> arrays, bool enable_gqa) {
  const strided_array& query = *arrays.begin()->array;
  std::int64_t heads = enable_gqa ? query.leading_extent(1) : 1;
  bool fits = true;
  std::string seen;
  for (const auto& [name, array] : arrays) {
    if (!*array) continue;
    const std::int64_t here = array->leading_extent(1);
    seen += (seen.empty() ? "" : ", ") + std::string(name) + " " + text_of(here);
    fits &= enable_gqa ? here == heads || (here > 0 && heads % here == 0)
                       : broadcast_extent(heads, here);
  }
  if (!fits && enable_gqa)
    refuse(
        "enable_gqa needs a number of query heads that is a multiple of the key and value "
        "heads, got " +
        seen);
  if (!fits)
    refuse("the numbers of heads must be equal or 1, got " + seen +
           "; enable_gqa lets groups of query heads share a key head");
  return heads;
}

score_form read_form(const attention_options& options) {
  if (!options.softcap) return {};
  if (!(*options.softcap > 0) || std::isinf(*options.softcap))
    refuse("softcap must be finite and greater than 0, got " + text_of(*options.softcap));
  if (*options.softcap < 1e-37 || *options.softcap > 1e37)
    refuse("softcap must be between 1e-37 and 1e37, where float32 holds it and its inverse, got " +
           text_of(*options.softcap));
  return {.softcap = *options.softcap};
}

/// Batch axes of (..., heads).
extents batch_of(const extents& leading) {
  return {leading.begin(), leading.empty() ? leading.end() : leading.end() - 1};
}

}  // namespace

extents leading_shape(std::initializer_list<named_array> arrays, bool enable_gqa) {
  bool any_heads = false;
  for (const auto& [name, array] : arrays) {
    if (!*array) continue;
    if (array->dimension() < 2)
      refuse(std::string(name) + " must have at least 2 axes (..., n, dim), got shape " +
             text_of(array->shape()));
    any_heads |= array->n_leading() > 0;
  }
  if (!any_heads) return {};
  extents leading = broadcast_batch(arrays);
  leading.push_back(broadcast_heads(arrays, enable_gqa));
  return leading;
}

extents broadcast_leading(named_array a, named_array b) {
  const int n = std::max(a.array->n_leading(), b.array->n_leading());
  extents leading(static_cast<std::size_t>(n), 1);
  bool fits = true;
  for (const named_array& each : {a, b})
    for (int axis = 0; axis < n; ++axis)
      fits &= broadcast_extent(leading[std::size_t(axis)], each.array->leading_extent(n - axis));
  if (!fits)
    refuse(std::string("the leading axes of ") + a.name + " and " + b.name +
           " must broadcast, got " + text_of(a.array->leading()) + " and " +
           text_of(b.array->leading()));
  return leading;
}

void check_matrices(const strided_array& query, const strided_array& key,
                    const strided_array& value) {
  if (query.extent(1) != key.extent(1))
    refuse("query and key must have the same last dimension (head_dim), got " +
           text_of(query.extent(1)) + " and " + text_of(key.extent(1)));
  if (value && value.extent(2) != key.extent(2))
    refuse("key and value must have the same number of keys, got " + text_of(key.extent(2)) +
           " and " + text_of(value.extent(2)));
}

void require_softmax(const attention_options& options, const char* call) {
  if (options.normalizer.rule != normalizer::softmax || options.normalizer.number)
    refuse(std::string(call) + " needs a plain softmax, got another normalizer");
}

void refuse_tables(const attention_options& options, const char* call, const char* reason) {
  for (const auto& [name, table] : {std::pair{"distance_scale", &options.distance_scale},
                                    std::pair{"distance_bias", &options.distance_bias}})
    if (*table) refuse(std::string(call) + " takes no " + name + ": " + reason);
}

void require_whole_sequence(const attention_options& options) {
  if (const scale_law* law = detail::law_of_distance(options))
    refuse("scale='" + std::string(law->name()) +
           "' depends on distances in the whole sequence, and a state knows only its part");
  refuse_tables(options, "attention_state",
                "distances are those of the whole sequence, and a state knows only its part");
}

// ---- one call ----------------------------------------------------------------------------------

struct call_description::state {
  const attention_options& options;
  call_arrays arrays{};
  double standard_scale = 1;
  key_intervals intervals{};
  row_array<double> law_scales{};
  std::pair<row_array<double>, row_array<double>> wide{};  // replace query and key
  std::pair<row_array<float>, row_array<float>> narrow{};
  detail::distance_form form{};

  std::int64_t head_dim() const { return std::max<std::int64_t>(1, arrays.query.extent(1)); }

  void read_arrays();
  void read_types();
  template <class T>
  void normalize(std::pair<row_array<T>, row_array<T>>& rows);
  template <class T>
  void take_rows(std::pair<row_array<T>, row_array<T>>& own,
                 std::pair<row_array<T>, row_array<T>> rows);
  void read_intervals();
  void read_rule();
  void read_scale();
};

void call_description::state::read_arrays() {
  arrays.leading =
      leading_shape({{"query", &arrays.query}, {"key", &arrays.key}, {"value", &arrays.value}},
                    options.enable_gqa);
  check_matrices(arrays.query, arrays.key, arrays.value);
  detail::check_enumerator("qk_norm", options.qk_norm, row_norm::rms);
  read_types();
  arrays.attn_mask = options.attn_mask.array();
  arrays.mask_type = options.attn_mask.kind();
  if (arrays.attn_mask)
    check_broadcast("attn_mask", arrays.attn_mask, joined(arrays.rows(), {arrays.n_keys()}),
                    "(..., heads, n_queries, n_keys)");
}

/// Sets the compute type; under qk_norm replaces query and key by normalized rows of that type.
void call_description::state::read_types() {
  for (const strided_array* array : {&arrays.query, &arrays.key, &arrays.value})
    if (*array && array->layout().type == element_type::float64)
      arrays.compute = element_type::float64;
  if (options.qk_norm == row_norm::none) return;
  if (arrays.compute == element_type::float64)
    normalize(wide);
  else
    normalize(narrow);
}

template <class T>
void call_description::state::normalize(std::pair<row_array<T>, row_array<T>>& rows) {
  take_rows(rows, {detail::normalized<T>(arrays.query, options.qk_norm),
                   detail::normalized<T>(arrays.key, options.qk_norm)});
}

template <class T>
void call_description::state::take_rows(std::pair<row_array<T>, row_array<T>>& own,
                                        std::pair<row_array<T>, row_array<T>> rows) {
  own = std::move(rows);
  arrays.query = strided_array(own.first, 2);
  arrays.key = strided_array(own.second, 2);
}

void call_description::state::read_intervals() {
  const extents batch = batch_of(arrays.leading);
  interval_options given{arrays.n_queries(), arrays.n_keys(), batch};
  given.causal = detail::check_causal(options);
  given.causal_offset = options.causal_offset;
  given.window = options.window;
  strided_array lengths, ids;
  if (options.key_lengths) {
    lengths = strided_array(options.key_lengths.rows(), 0);
    given.key_lengths = lengths.integers();
  }
  if (options.document_ids) {
    ids = strided_array(options.document_ids.rows(), 0);
    given.document_ids = ids.integers();
  }
  intervals = key_intervals(given);
  if (intervals.begin()) arrays.begin = strided_array(*intervals.begin(), 1);
  if (intervals.end()) arrays.end = strided_array(*intervals.end(), 1);
}

void call_description::state::read_rule() {
  const normalizer_choice& choice = options.normalizer;
  detail::check_choice(choice);
  arrays.rule = choice.rule;
  arrays.numbers = choice.numbers;
  if (!choice.number) return;
  arrays.number = strided_array(choice.number.rows(), 1);
  check_broadcast("the numbers of the normalizer", arrays.number, arrays.rows(),
                  "(..., heads, n_queries)");
  for (const double each : choice.number.rows().numbers)
    if (!std::isfinite(each))
      refuse("the numbers of the normalizer must be finite, got " + text_of(each));
}

void call_description::state::read_scale() {
  standard_scale = 1 / std::sqrt(static_cast<double>(head_dim()));
  arrays.scale = {&standard_scale, element_type::float64, sizeof(double), {}, {}, 1};
  if (!options.scale || detail::law_of_distance(options)) return;
  const row_array<double>* scales = &options.scale.numbers().rows();
  if (options.scale.law()) {
    require_one_scale_a_row(*options.scale.law());
    law_scales = scales_of_law(*options.scale.law(), intervals, arrays, execution_of(options));
    scales = &law_scales;
  }
  arrays.scale = strided_array(*scales, 1);
  if (!options.scale.law())
    check_broadcast("scale", arrays.scale, arrays.rows(), "(..., heads, n_queries)");
  for (const double scale : scales->numbers) detail::check_finite("scale", scale);
}

call_description::call_description(strided_array query, strided_array key, strided_array value,
                                   const attention_options& options)
    : state_(new state{options}) {
  call_arrays& arrays = state_->arrays;
  arrays.query = std::move(query);
  arrays.key = std::move(key);
  arrays.value = std::move(value);
  state_->read_arrays();
  state_->read_intervals();
  detail::check_threads(options.num_threads);
  state_->read_rule();
  state_->form.read(options, state_->intervals, state_->head_dim(), arrays);
  state_->read_scale();
  arrays.form = read_form(options);
}

const attention_options& call_description::options() const { return state_->options; }
const call_arrays& call_description::arrays() const { return state_->arrays; }
double call_description::standard_scale() const { return state_->standard_scale; }
execution call_description::how() const { return execution_of(state_->options); }

void call_description::take_rows(row_array<float> query, row_array<float> key) {
  state_->take_rows(state_->narrow, {std::move(query), std::move(key)});
}

void call_description::take_rows(row_array<double> query, row_array<double> key) {
  state_->take_rows(state_->wide, {std::move(query), std::move(key)});
}

void call_description::set_output(strided_array output) {
  state_->arrays.output = std::move(output);
}

void call_description::check_statistics(const statistic_set& wanted) const {
  const normalizer_choice& choice = state_->options.normalizer;
  for (const std::string_view name : statistic_names)
    if (const statistic which = statistic_named(name);
        wanted.contains(which) && !has_statistic(choice.rule, !choice.number, which))
      refuse("this normalizer has no such statistic: " + std::string(name));
}

void call_description::attend(const row_outputs& rows, const statistic_set& wanted) const {
  check_statistics(wanted);
  attention_problem problem;
  problem.statistics = rows;
  fill(problem);
  run(problem, how());
}

score_tables<strided_array> call_description::zero_tables(const score_tables<bool>& wanted) {
  return state_->form.zeros(wanted);
}

score_tables<row_array<double>> call_description::table_gradients() const {
  return state_->form.gradients(state_->options);
}

}  // namespace attnscale
