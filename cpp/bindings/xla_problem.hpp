// SPDX-License-Identifier: BSD-3-Clause
//
// A call of attention as XLA carries it, in the core's form.
#pragma once

#include "attnscale/intervals.hpp"
#include "attnscale/normalizer_traits.hpp"
#include "attnscale/problem.hpp"
#include "xla_arrays.hpp"

namespace attnscale::bindings::xla {

/// The arrays of a call of attention, and what its options say of rows.
class call_arrays {
 public:
  explicit call_arrays(const call_reader& call);
  call_arrays(const call_arrays&) = delete;  // arrays refer to others
  call_arrays& operator=(const call_arrays&) = delete;

  attention_head head(const extents& index) const {
    attention_head head;
    head.query = query.at(index, leading);
    head.key = key.at(index, leading);
    head.value = value.at(index, leading);
    head.attn_mask = mask.at(index, leading);
    head.scale = scale ? static_cast<const double*>(scale.at(index, leading)) : &one_scale_;
    head.begin = static_cast<const std::int64_t*>(begin.at(index, leading));
    head.end = static_cast<const std::int64_t*>(end.at(index, leading));
    head.tables = {tables.distance_scale.at(index, leading),
                   tables.distance_bias.at(index, leading)};
    head.number = number.at(index, leading);
    return head;
  }

  bool swapped;
  strided_array query, key, value, mask;
  normalizer rule;
  rows_of<double> number;
  score_tables<strided_array> tables;
  /// (..., heads) of the call. An axis is 1 long where an array is the same for all of it, and the
  /// query has at least as many heads as keys and values.
  extents leading;
  strided_array begin, end, scale;  ///< of rows; absent where the call has none

 private:
  void read_leading(const call_reader& call);
  void read_intervals(const call_reader& call);
  void read_scale(const call_reader& call);

  rows_of<double> scales_;
  double one_scale_;
  key_intervals intervals_;
  row_array<double> law_scales_;
};

/// Everything of a problem but its heads and results.
void describe(const call_reader& call, const call_arrays& given, attention_problem& problem);

/// Refuses numbers that the caller could not look at before the call runs.
void check_numbers(const call_reader& call);

/// Computes what xla_call.hpp says of attend() and gradients().
void run_attention(const call_reader& call);
void run_gradients(const call_reader& call);

}  // namespace attnscale::bindings::xla
