// SPDX-License-Identifier: BSD-3-Clause
//
// Estimate of whether a call is long enough for more than one thread.
#pragma once

#include <limits>

#include "attnscale/normalizer_traits.hpp"
#include "attnscale/problem.hpp"

namespace attnscale::detail {

/// Approximate time of a forward pass on one thread without hidden keys, at level avx2: half of it
/// at level avx512. Infinity for normalizers other than exponentials, whose time depends on the
/// scores.
inline double forward_nanoseconds(const attention_problem& p) {
  constexpr double multiply_adds = 32;  // per nanosecond
  constexpr double of_a_weight = 32;    // exponential and sums, in multiply-adds
  if (!traits_of(p.rule).is_exponential) return std::numeric_limits<double>::infinity();
  const double weights = static_cast<double>(p.heads.size()) * static_cast<double>(p.n_queries) *
                         static_cast<double>(p.n_keys);
  const double of_products = static_cast<double>(p.head_dim + p.value_dim);
  const double time = weights * (of_products + of_a_weight) / multiply_adds;
  return p.compute == element_type::float64 ? 2 * time : time;
}

/// Execution of a call that takes one thread this long: on that thread alone if others would cost
/// more than they save.
execution one_thread_if_short(const execution& how, double nanoseconds);

}  // namespace attnscale::detail
