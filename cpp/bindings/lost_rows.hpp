// SPDX-License-Identifier: BSD-3-Clause
//
// Check for NaN rows in a result: Python then looks for the reason, and warns.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attnscale/float16.hpp"
#include "attnscale/problem.hpp"

namespace attnscale::bindings {

inline bool is_nan(float x) { return x != x; }
inline bool is_nan(double x) { return x != x; }
inline bool is_nan(float16 x) { return (x.bits() & 0x7fff) > 0x7c00; }
inline bool is_nan(bfloat16 x) { return (x.bits() & 0x7fff) > 0x7f80; }

/// Whether one of `count` numbers, `step` elements apart, is NaN.
template <class T>
bool has_nan(const void* data, std::int64_t count, std::ptrdiff_t step) {
  const T* const numbers = static_cast<const T*>(data);
  for (std::int64_t i = 0; i < count; ++i)
    if (is_nan(numbers[i * step])) return true;
  return false;
}

inline bool has_nan(element_type type, const void* data, std::int64_t count, std::ptrdiff_t step) {
  switch (type) {
    case element_type::float64:
      return has_nan<double>(data, count, step);
    case element_type::float32:
      return has_nan<float>(data, count, step);
    case element_type::float16:
      return has_nan<float16>(data, count, step);
    case element_type::bfloat16:
      return has_nan<bfloat16>(data, count, step);
  }
  return false;
}

/// Whether a statistic of a row is NaN, or the first number of its output: all numbers of an output
/// are NaN if its weights are.
inline bool has_lost_rows(const attention_problem& problem) {
  const auto rows = static_cast<std::int64_t>(problem.heads.size()) * problem.n_queries;
  const element_type type = problem.statistics.type(problem.compute);
  for (std::size_t i = 0; i < statistic_names.size(); ++i) {
    const auto which = static_cast<statistic>(i);
    const void* const place = is_count(which) ? nullptr : problem.statistics[which];
    if (place && has_nan(type, place, rows, 1)) return true;
  }
  const matrix_layout& output = problem.output;
  return problem.value_dim > 0 &&
         std::any_of(problem.heads.begin(), problem.heads.end(), [&](const attention_head& head) {
           return head.output && has_nan(output.type, head.output, problem.n_queries, output.row);
         });
}

}  // namespace attnscale::bindings
