// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "attnscale/problem.hpp"
#include "exact/statistic_gradients.hpp"
#include "kernels/gradient/block.hpp"
#include "machine/scratch.hpp"

namespace attnscale::detail {

/// Results of the forward pass for a backward pass: those that the caller has, and the others
/// computed again.
class forward_pass {
 public:
  forward_pass(const gradient_problem& problem, const execution& how);

  /// The problem with all results present.
  const gradient_problem& problem() const { return p_; }

  /// A statistic of a row, or 0 if unused.
  double at(statistic which, std::int64_t row) const { return read(p_.statistics[which], row); }
  /// Statistics of a row that have gradients, and the gradients by them.
  row_statistics row(std::int64_t row) const;
  /// Key of a row with the largest score, or -1 if unused.
  std::int64_t top(std::int64_t row) const {
    const void* tops = p_.statistics[statistic::argmax];
    return tops ? static_cast<const std::int64_t*>(tops)[row] : -1;
  }

  gradient_terms terms() const;
  /// Whether the loss depends on a statistic, besides the output.
  bool has_cotangents() const { return p_.cotangents.any(); }

 private:
  bool needs(statistic which) const;
  bool needs_output() const;
  bool lacks_statistics() const;
  void add_statistics(attention_problem& rest);
  void add_output(attention_problem& rest);
  double read(const void* rows, std::int64_t row) const;

  gradient_problem p_;
  std::vector<aligned_buffer> kept_;
};

}  // namespace attnscale::detail
