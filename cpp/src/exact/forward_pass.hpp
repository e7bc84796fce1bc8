// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "attnscale/problem.hpp"
#include "exact/statistic_gradients.hpp"
#include "kernels/gradient/block.hpp"
#include "machine/scratch.hpp"

namespace attnscale::detail {

/// What a backward pass needs of its forward pass: what the caller has kept of it, and the rest
/// computed once more.
class forward_pass {
 public:
  forward_pass(const gradient_problem& problem, const execution& how);

  /// The problem with nothing missing.
  const gradient_problem& problem() const { return p_; }

  /// A statistic of a row, 0 where nothing needs it.
  double at(statistic which, std::int64_t row) const { return read(p_.statistics[which], row); }
  /// Those that have gradients, and what comes in by them.
  row_statistics row(std::int64_t row) const;
  /// Its key with the largest score, -1 where nothing needs it.
  std::int64_t top(std::int64_t row) const {
    const void* tops = p_.statistics[statistic::argmax];
    return tops ? static_cast<const std::int64_t*>(tops)[row] : -1;
  }

  gradient_terms terms() const;
  /// Whether the loss depends on a statistic, and not on the output alone.
  bool has_cotangents() const { return p_.cotangents.any(); }

 private:
  bool needs(statistic which) const;
  bool needs_output() const;
  void add_statistics(attention_problem& rest);
  void add_output(attention_problem& rest);
  double read(const void* rows, std::int64_t row) const;

  gradient_problem p_;
  std::vector<aligned_buffer> kept_;
};

}  // namespace attnscale::detail
