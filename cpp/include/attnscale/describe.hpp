// SPDX-License-Identifier: BSD-3-Clause
//
// From arrays and options to the core's problem: every check of shapes and numbers, and the walk
// over batches and heads. Messages name the argument, the rule and what was seen.
#pragma once

#include <cmath>
#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>

#include "attnscale/check.hpp"
#include "attnscale/check_law.hpp"
#include "attnscale/distance_form.hpp"
#include "attnscale/intervals.hpp"
#include "attnscale/normalizer_traits.hpp"
#include "attnscale/options.hpp"
#include "attnscale/problem.hpp"
#include "attnscale/results.hpp"
#include "attnscale/row_norm.hpp"
#include "attnscale/strided_array.hpp"

namespace attnscale::detail {

/// An argument of a call: its name for messages, and its array.
struct named_array {
  const char* name;
  const strided_array* array;
};

/// `extent` joins the broadcast extent of an axis; false if they do not fit.
inline bool broadcast_extent(std::int64_t& broadcast, std::int64_t extent) {
  if (broadcast == 1) broadcast = extent;
  return extent == broadcast || extent == 1;
}

inline extents batch_shape(const strided_array& array) {
  const extents& shape = array.shape();
  return {shape.begin(), shape.size() > 3 ? shape.end() - 3 : shape.begin()};
}

/// Batch axes (all leading axes but the heads) of the result.
inline extents broadcast_batch(std::initializer_list<named_array> arrays) {
  int n = 0;
  for (const auto& [name, array] : arrays) n = std::max(n, array->n_leading() - 1);
  extents batch(static_cast<std::size_t>(n), 1);
  bool fits = true;
  std::string seen;
  for (const auto& [name, array] : arrays) {
    for (int axis = 0; axis < n; ++axis)
      fits &= broadcast_extent(batch[std::size_t(axis)], array->leading_extent(n - axis + 1));
    seen += (seen.empty() ? "" : " and ") + std::string(name) + " " + text_of(batch_shape(*array));
  }
  if (!fits) refuse("the batch axes must broadcast, got " + seen);
  return batch;
}

/// Number of heads of the result: that of the query under enable_gqa, else equal or 1.
inline std::int64_t broadcast_heads(std::initializer_list<named_array> arrays, bool enable_gqa) {
  const strided_array& query = *arrays.begin()->array;
  std::int64_t heads = enable_gqa ? query.leading_extent(1) : 1;
  bool fits = true;
  std::string seen;
  for (const auto& [name, array] : arrays) {
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

/// (..., heads) of the result.
inline extents leading_shape(std::initializer_list<named_array> arrays, bool enable_gqa) {
  bool any_heads = false;
  for (const auto& [name, array] : arrays) {
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

inline void check_matrices(const strided_array& query, const strided_array& key,
                           const strided_array& value) {
  if (query.extent(1) != key.extent(1))
    refuse("query and key must have the same last dimension (head_dim), got " +
           text_of(query.extent(1)) + " and " + text_of(key.extent(1)));
  if (value && value.extent(2) != key.extent(2))
    refuse("key and value must have the same number of keys, got " + text_of(key.extent(2)) +
           " and " + text_of(value.extent(2)));
}

inline score_form read_form(const attention_options& options) {
  if (!options.softcap) return {};
  if (!(*options.softcap > 0) || std::isinf(*options.softcap))
    refuse("softcap must be finite and greater than 0, got " + text_of(*options.softcap));
  if (*options.softcap < 1e-37 || *options.softcap > 1e37)
    refuse("softcap must be between 1e-37 and 1e37, where float32 holds it and its inverse, got " +
           text_of(*options.softcap));
  return {.softcap = *options.softcap};
}

/// Calls whose results are about a plain softmax.
inline void require_softmax(const attention_options& options, const char* call) {
  if (options.normalizer.rule != normalizer::softmax || options.normalizer.number)
    refuse(std::string(call) + " is of a plain softmax, got another normalizer");
}

/// For calls that know the distances of a part of the sequence alone, or whose answer needs scores
/// that are proportional to the scale.
inline void refuse_tables(const attention_options& options, const char* call, const char* reason) {
  for (const auto& [name, table] : {std::pair{"distance_scale", &options.distance_scale},
                                    std::pair{"distance_bias", &options.distance_bias}})
    if (*table) refuse(std::string(call) + " takes no " + name + ": " + reason);
}

/// A state knows only its part of the keys.
inline void require_whole_sequence(const attention_options& options) {
  if (const scale_law* law = law_of_distance(options))
    refuse("scale='" + std::string(law->name()) +
           "' depends on distances in the whole sequence, and a state knows only its part");
  refuse_tables(options, "attention_state",
                "distances are those of the whole sequence, and a state knows only its part");
}

/// How a call with these options runs; they have to outlive it.
template <class Options>
execution execution_of(const Options& options) {
  execution how{options.num_threads, nullptr, nullptr};
  if (!options.interrupted) return how;
  how.interrupted = [](void* f) { return (*static_cast<const std::function<bool()>*>(f))(); };
  how.context = const_cast<std::function<bool()>*>(&options.interrupted);
  return how;
}

/// The arrays and options of one call in the core's form, and what they own.
class call_description {
 public:
  call_description(strided_array query, strided_array key, strided_array value,
                   const attention_options& options)
      : query_(std::move(query)),
        key_(std::move(key)),
        value_(std::move(value)),
        mask_(options.attn_mask.array()),
        options_(options) {
    leading_ = value_ ? leading_shape({{"query", &query_}, {"key", &key_}, {"value", &value_}},
                                      options.enable_gqa)
                      : leading_shape({{"query", &query_}, {"key", &key_}}, options.enable_gqa);
    check_matrices(query_, key_, value_);
    check_enumerator("qk_norm", options.qk_norm, row_norm::rms);
    read_types();
    if (mask_)
      check_broadcast("attn_mask", mask_, joined(leading_, {n_queries(), n_keys()}),
                      "(..., heads, n_queries, n_keys)");
    read_intervals();
    check_threads(options.num_threads);
    read_rule();
    form_.read(options, intervals_, leading_, {n_queries(), n_keys()}, head_dim(), compute_);
    read_scale();
  }
  call_description(const call_description&) = delete;  // its arrays refer to options_
  call_description& operator=(const call_description&) = delete;

  const extents& leading() const { return leading_; }
  std::int64_t n_queries() const { return query_.extent(2); }
  std::int64_t n_keys() const { return key_.extent(2); }
  std::int64_t value_dim() const { return value_ ? value_.extent(1) : 0; }
  const strided_array& value() const { return value_; }
  double standard_scale() const { return standard_scale_; }
  const distance_form& form() const { return form_; }
  std::ptrdiff_t scale_row() const { return scales_.stride(1); }

  /// What all kinds of problems share.
  void fill(score_problem& problem) const {
    problem.compute = compute_;
    problem.n_queries = n_queries();
    problem.n_keys = n_keys();
    problem.head_dim = query_.extent(1);
    problem.query = query_.layout();
    problem.key = key_.layout();
    if (mask_) problem.attn_mask = mask_.layout();
    problem.mask_type = options_.attn_mask.kind();
    problem.scale_row = scale_row();
    problem.begin_row = begin_.stride(1);
    problem.end_row = end_.stride(1);
    problem.form = read_form(options_);
    problem.tables = form_.layouts();
    problem.heads.reserve(static_cast<std::size_t>(count_entries(leading_)));
    for_each_index(leading_,
                   [&](const extents& index) { problem.heads.push_back(head_at(index)); });
  }

  /// The normalizer; refuses statistics that its rows do not have.
  void fill_rule(attention_problem& problem, const statistic_set& wanted) const {
    problem.rule = options_.normalizer.rule;
    problem.numbers = options_.normalizer.numbers;
    problem.number_row = row_numbers_ ? row_numbers_.stride(1) : 0;
    for (const std::string_view name : statistic_names)
      if (const statistic which = statistic_named(name);
          wanted.contains(which) &&
          !has_statistic(problem.rule, !options_.normalizer.number, which))
        refuse("this normalizer has no such statistic: " + std::string(name));
  }

  execution how() const { return execution_of(options_); }

  const strided_array& query() const { return query_; }
  const strided_array& key() const { return key_; }

  /// Rows that take the place of query and key. Scales stay those of the ones that were given.
  void set_rows(strided_array query, strided_array key) {
    query_ = std::move(query);
    key_ = std::move(key);
  }

 private:
  attention_head head_at(const extents& index) const {
    const auto* scale = static_cast<const double*>(scales_.at(index, leading_));
    attention_head head;
    head.query = query_.at(index, leading_);
    head.key = key_.at(index, leading_);
    head.value = value_.at(index, leading_);
    head.attn_mask = mask_.at(index, leading_);
    head.scale = scale ? scale : &standard_scale_;
    head.tables = form_.at(index);
    head.begin = static_cast<const std::int64_t*>(begin_.at(index, leading_));
    head.end = static_cast<const std::int64_t*>(end_.at(index, leading_));
    head.number = static_cast<const double*>(row_numbers_.at(index, leading_));
    return head;
  }

  void read_intervals() {
    const extents batch = batch_of(leading_);
    interval_options given{n_queries(), n_keys(), {batch.data(), batch.size()}};
    given.causal = check_causal(options_);
    given.causal_offset = options_.causal_offset;
    given.window = options_.window;
    strided_array lengths, ids;
    if (options_.key_lengths) {
      lengths = strided_array(options_.key_lengths.values(), 0);
      given.key_lengths = lengths.integers();
    }
    if (options_.document_ids) {
      ids = strided_array(options_.document_ids.values(), 0);
      given.document_ids = ids.integers();
    }
    intervals_ = key_intervals(given);
    if (intervals_.begin()) begin_ = strided(*intervals_.begin());
    if (intervals_.end()) end_ = strided(*intervals_.end());
  }

  std::int64_t head_dim() const { return std::max<std::int64_t>(1, query_.extent(1)); }

  /// The type of the arithmetic; in it, rows of another length take the place of query and key.
  void read_types() {
    for (const strided_array* array : {&query_, &key_, &value_})
      if (*array && array->layout().type == element_type::float64) compute_ = element_type::float64;
    if (options_.qk_norm == row_norm::none) return;
    if (compute_ == element_type::float64)
      normalize(wide_);
    else
      normalize(narrow_);
  }

  template <class T>
  void normalize(std::pair<dense_array<T>, dense_array<T>>& rows) {
    rows.first = normalized<T>(query_, options_.qk_norm);
    rows.second = normalized<T>(key_, options_.qk_norm);
    query_ = strided_array(rows.first, 2);
    key_ = strided_array(rows.second, 2);
  }

  void read_rule() {
    check_choice(options_.normalizer);
    if (!options_.normalizer.number) return;
    const dense_array<double>& values = options_.normalizer.number.values();
    row_numbers_ = strided_array(values, 1);
    check_broadcast("the numbers of the normalizer", row_numbers_, joined(leading_, {n_queries()}),
                    "(..., heads, n_queries)");
    for (const double each : values)
      if (!std::isfinite(each))
        refuse("the numbers of the normalizer must be finite, got " + text_of(each));
  }

  void read_scale() {
    standard_scale_ = 1 / std::sqrt(static_cast<double>(head_dim()));
    if (!options_.scale || law_of_distance(options_)) return;
    if (options_.scale.law()) {
      law_scales_ = scales_of(*options_.scale.law());
      for (const double scale : law_scales_.numbers) check_finite("scale", scale);
      scales_ = strided(law_scales_);
      return;
    }
    const dense_array<double>& given = options_.scale.numbers().values();
    const strided_array scales(given, 1);
    check_broadcast("scale", scales, joined(leading_, {n_queries()}), "(..., heads, n_queries)");
    for (const double scale : given) check_finite("scale", scale);
    scales_ = scales;
  }

  /// A law's scale of each row, of what it counts there.
  row_array<double> scales_of(const scale_law& law) const {
    require_one_scale_a_row(law);
    if (!mask_ || law.meaning() != n_means::visible_keys)
      return law_scales(law, intervals_, nullptr, head_dim());
    const extents rows = joined(leading_, {n_queries()});
    row_array<std::int64_t> visible{{rows.begin(), rows.end()}, {}};
    visible.numbers.resize(static_cast<std::size_t>(count_entries(rows)));
    score_problem problem;
    fill(problem);
    count_visible(problem, visible.numbers.data(), how());
    return law_scales(law, intervals_, &visible, head_dim());
  }

  strided_array query_, key_, value_, mask_, scales_, row_numbers_, begin_, end_;
  row_array<double> law_scales_;
  std::pair<dense_array<double>, dense_array<double>> wide_;  // query and key of qk_norm
  std::pair<dense_array<float>, dense_array<float>> narrow_;
  key_intervals intervals_;
  distance_form form_;
  element_type compute_ = element_type::float32;
  const attention_options& options_;
  extents leading_;
  double standard_scale_ = 1;
};

}  // namespace attnscale::detail
