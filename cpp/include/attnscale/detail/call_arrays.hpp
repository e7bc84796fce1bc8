// SPDX-License-Identifier: BSD-3-Clause
//
// The arrays of one call as the core reads them. The C++, Python and XLA front ends fill these
// structs; the loop over batches and heads is here.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "attnscale/detail/export.hpp"
#include "attnscale/detail/intervals.hpp"
#include "attnscale/detail/strided_array.hpp"
#include "attnscale/problem.hpp"

namespace attnscale {

/// Arrays whose leading axes broadcast to (..., heads) of the call, in memory that outlives the
/// problems. Unused ones are absent.
struct ATTNSCALE_EXPORT call_arrays {
  element_type compute = element_type::float32;  ///< float32 or float64
  extents leading{};                             ///< (..., heads)
  strided_array query{}, key{}, value{}, output{}, attn_mask{};
  mask_kind mask_type = mask_kind::none;
  /// Numbers per row, (..., heads, n_queries): std::int64_t for begin and end, double for scale and
  /// number.
  strided_array begin{}, end{}, scale{}, number{};
  score_tables<strided_array> tables{};
  score_form form{};
  normalizer rule = normalizer::softmax;
  normalizer_numbers numbers{};
  std::int64_t leading_keys = 0;

  std::int64_t n_queries() const { return query.extent(2); }
  std::int64_t n_keys() const { return key.extent(2); }
  std::int64_t value_dim() const { return value ? value.extent(1) : 0; }
  /// Shape of results with one number per row: (..., heads, n_queries).
  extents rows() const { return joined(leading, {n_queries()}); }

  /// Fills a problem, except the row statistics.
  void fill(score_problem& problem) const;
  void fill(attention_problem& problem) const;
};

/// Gradients of a call and their inputs; the layouts are those of gradient_problem.
struct ATTNSCALE_EXPORT gradient_arrays {
  strided_array grad_output{}, query{}, key{}, value{}, attn_mask{};
  score_tables<strided_array> tables{};
  strided_array received{}, most_received{};  ///< (..., heads, n_keys), double

  void fill(gradient_problem& problem, const extents& leading) const;
};

/// Broadcast of the leading axes of arrays that are known to fit. Absent arrays have no axes.
ATTNSCALE_EXPORT extents common_leading(std::initializer_list<const strided_array*> arrays);

/// Scale of each row by a law whose n is one of the counts of the intervals, under the mask of the
/// call.
ATTNSCALE_EXPORT row_array<double> scales_of_law(const scale_law& law,
                                                 const key_intervals& intervals,
                                                 const call_arrays& call, const execution& how);

}  // namespace attnscale
