// SPDX-License-Identifier: BSD-3-Clause
//
// An attention call of XLA in the core's form.
#pragma once

#include "attnscale/detail/call_arrays.hpp"
#include "attnscale/normalizer_traits.hpp"
#include "xla_arrays.hpp"

namespace attnscale::bindings::xla {

/// Arrays of a call, and its options for rows. An axis of (..., heads) has length 1 if an array is
/// constant along it, and the query has at least as many heads as keys and values.
class xla_call_arrays : public call_arrays {
 public:
  explicit xla_call_arrays(const call_reader& call);
  xla_call_arrays(const xla_call_arrays&) = delete;  // arrays refer to others
  xla_call_arrays& operator=(const xla_call_arrays&) = delete;

  bool swapped;

 private:
  void read_leading(const call_reader& call);
  void read_intervals(const call_reader& call);
  void read_scale(const call_reader& call);
  /// Rows that the core made with all leading axes as the batch, so with one more axis of heads.
  template <class Number>
  strided_array of_heads(const row_array<Number>& rows) const;

  rows_of<double> scales_, numbers_;
  double one_scale_;
  key_intervals intervals_;
  row_array<double> law_scales_;
};

/// Refuses numbers that the caller could not check before the call runs.
void check_numbers(const call_reader& call);

/// Computes attend() and gradients() of xla_call.hpp.
void run_attention(const call_reader& call);
void run_gradients(const call_reader& call);

}  // namespace attnscale::bindings::xla
