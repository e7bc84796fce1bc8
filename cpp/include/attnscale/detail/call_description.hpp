// SPDX-License-Identifier: BSD-3-Clause
//
// From arrays and options to the core's problem, with every check of shapes and numbers. Messages
// name the argument, the rule and what was seen.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>

#include "attnscale/detail/call_arrays.hpp"
#include "attnscale/options.hpp"

namespace attnscale {

/// An argument of a call: its name in messages, and its array.
struct named_array {
  const char* name;
  const strided_array* array;
};

/// Leading axes (..., heads) of the result. Under enable_gqa the first array has the heads, and the
/// head counts of the others divide its own.
ATTNSCALE_EXPORT extents leading_shape(std::initializer_list<named_array> arrays, bool enable_gqa);

/// Broadcast of the leading axes of two arrays.
ATTNSCALE_EXPORT extents broadcast_leading(named_array a, named_array b);

/// Refuses matrices that do not fit each other; the value may be absent.
ATTNSCALE_EXPORT void check_matrices(const strided_array& query, const strided_array& key,
                                     const strided_array& value);

/// Refuses any normalizer but a plain softmax.
ATTNSCALE_EXPORT void require_softmax(const attention_options& options, const char* call);

/// Refuses tables of the distance, for calls that know only the distances of a part of the
/// sequence, or whose answer needs scores proportional to the scale.
ATTNSCALE_EXPORT void refuse_tables(const attention_options& options, const char* call,
                                    const char* reason);

/// Refuses options that need the whole sequence: a state knows only its part of the keys.
ATTNSCALE_EXPORT void require_whole_sequence(const attention_options& options);

/// The arrays and options of one call in the core's form, and the memory they need. Options outlive
/// it.
class ATTNSCALE_EXPORT call_description {
 public:
  call_description(strided_array query, strided_array key, strided_array value,
                   const attention_options& options);

  const attention_options& options() const;
  const call_arrays& arrays() const;
  const extents& leading() const { return arrays().leading; }
  extents rows() const { return arrays().rows(); }
  std::int64_t n_queries() const { return arrays().n_queries(); }
  std::int64_t n_keys() const { return arrays().n_keys(); }
  std::int64_t value_dim() const { return arrays().value_dim(); }
  double standard_scale() const;
  execution how() const;

  /// Replaces query and key by rows of the compute type. Scales stay those of the given query and
  /// key.
  void take_rows(row_array<float> query, row_array<float> key);
  void take_rows(row_array<double> query, row_array<double> key);
  /// A writable output (..., heads, n_queries, value_dim).
  void set_output(strided_array output);

  /// Fills a problem, except its results.
  void fill(score_problem& problem) const { arrays().fill(problem); }
  void fill(attention_problem& problem) const { arrays().fill(problem); }
  /// Refuses statistics that the normalizer does not have.
  void check_statistics(const statistic_set& wanted) const;

  /// One pass: the output, if one is set, and the wanted statistics, into `rows`.
  void attend(const row_outputs& rows, const statistic_set& wanted) const;

  /// Zeros in place of the distance tables, for their gradients to be added to; then, from the
  /// gradient at each distance, the gradient of the table as it was given. 0 where there are no
  /// pairs.
  score_tables<strided_array> zero_tables(const score_tables<bool>& wanted);
  score_tables<row_array<double>> table_gradients() const;

 private:
  struct state;
  std::shared_ptr<state> state_;
};

namespace detail {

/// How to run a call with these options, which have to outlive the result.
template <class Options>
execution execution_of(const Options& options) {
  execution how{options.num_threads, nullptr, nullptr};
  if (!options.interrupted) return how;
  how.interrupted = [](void* f) { return (*static_cast<const std::function<bool()>*>(f))(); };
  how.context = const_cast<std::function<bool()>*>(&options.interrupted);
  return how;
}

}  // namespace detail
}  // namespace attnscale
