// SPDX-License-Identifier: BSD-3-Clause
//
// Whether a call is long enough for more than one thread.
#pragma once

#include <limits>

#include "attnscale/normalizer_traits.hpp"
#include "attnscale/problem.hpp"

namespace attnscale::detail {

/// About how long one thread takes for a forward pass, if no key is hidden, at level avx2: half of
/// it at level avx512. Infinity but for exponentials: the time of the others depends on the scores.
inline double forward_nanoseconds(const attention_problem& p) {
  constexpr double multiply_adds = 32;  // in a nanosecond
  constexpr double of_a_weight = 32;    // its exponential and sums, in multiply-adds
  if (!traits_of(p.rule).is_exponential) return std::numeric_limits<double>::infinity();
  const double weights = static_cast<double>(p.heads.size()) * static_cast<double>(p.n_queries) *
                         static_cast<double>(p.n_keys);
  const double of_products = static_cast<double>(p.head_dim + p.value_dim);
  const double time = weights * (of_products + of_a_weight) / multiply_adds;
  return p.compute == element_type::float64 ? 2 * time : time;
}

/// The execution of a call that takes one thread so long: on that thread alone where others would
/// cost more than they save.
execution worth_sharing(const execution& how, double nanoseconds);

}  // namespace attnscale::detail
