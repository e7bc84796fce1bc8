// SPDX-License-Identifier: BSD-3-Clause
//
// From arrays and options to the core's problem: every check of shapes and numbers. Messages name
// the argument, the rule and what was seen.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>

#include "attnscale/detail/call_arrays.hpp"
#include "attnscale/options.hpp"

namespace attnscale {

/// An argument of a call: its name for messages, and its array.
struct named_array {
  const char* name;
  const strided_array* array;
};

/// (..., heads) of the result. Under enable_gqa the first array has the heads, and the numbers of
/// the others divide theirs.
ATTNSCALE_EXPORT extents leading_shape(std::initializer_list<named_array> arrays, bool enable_gqa);

/// What the leading axes of two arrays broadcast to.
ATTNSCALE_EXPORT extents broadcast_leading(named_array a, named_array b);

/// Refuses matrices that do not go with each other; the value may be absent.
ATTNSCALE_EXPORT void check_matrices(const strided_array& query, const strided_array& key,
                                     const strided_array& value);

/// Calls whose results are about a plain softmax.
ATTNSCALE_EXPORT void require_softmax(const attention_options& options, const char* call);

/// For calls that know the distances of a part of the sequence alone, or whose answer needs scores
/// that are proportional to the scale.
ATTNSCALE_EXPORT void refuse_tables(const attention_options& options, const char* call,
                                    const char* reason);

/// A state knows only its part of the keys.
ATTNSCALE_EXPORT void require_whole_sequence(const attention_options& options);

/// The arrays and options of one call in the core's form, and what they own. Options outlive it.
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

  /// Rows that take the place of query and key, of the type of the arithmetic. Scales stay those of
  /// the ones that were given.
  void take_rows(row_array<float> query, row_array<float> key);
  void take_rows(row_array<double> query, row_array<double> key);
  /// An output (..., heads, n_queries, value_dim), whose elements may be written.
  void set_output(strided_array output);

  /// Everything of a problem but its results.
  void fill(score_problem& problem) const { arrays().fill(problem); }
  void fill(attention_problem& problem) const { arrays().fill(problem); }
  /// Refuses statistics that the rows of the normalizer do not have.
  void check_statistics(const statistic_set& wanted) const;

  /// One pass: the output, if one is set, and the statistics that are wanted, into `rows`.
  void attend(const row_outputs& rows, const statistic_set& wanted) const;

  /// Zeros in place of the tables of the distance, for their gradients to be added to, and from the
  /// gradient at each distance to that of the table as it was given; 0 where there are no pairs.
  score_tables<strided_array> zero_tables(const score_tables<bool>& wanted);
  score_tables<row_array<double>> table_gradients() const;

 private:
  struct state;
  std::shared_ptr<state> state_;
};

namespace detail {

/// How a call with these options runs; they have to outlive it.
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
