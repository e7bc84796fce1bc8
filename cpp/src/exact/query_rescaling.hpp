// SPDX-License-Identifier: BSD-3-Clause
//
// Rescaling for scales, or products of query and key, so far from 1 that unscaled products may
// leave the type's range while scores do not: a power of two, half the exponent of the scales,
// moves into the queries. It changes no digit.
#pragma once

#include <vector>

#include "attnscale/problem.hpp"
#include "machine/scratch.hpp"

namespace attnscale::detail {

class query_rescaling {
 public:
  explicit query_rescaling(const attention_problem& p);
  explicit query_rescaling(const top_keys_problem& p);
  explicit query_rescaling(const curve_problem& p);
  /// Without a scale: by the size of the products of some rows.
  explicit query_rescaling(const solve_problem& p);

  /// Whether anything has to move.
  bool needed() const { return power_ != 0; }
  /// Gives the problem rescaled queries and scales, which live as long as this object.
  void apply(attention_problem& p) { move_scales(p); }
  void apply(top_keys_problem& p) { move_scales(p); }
  void apply(curve_problem& p);
  void apply(solve_problem& p) { move_queries(p); }
  /// Scales the results for the problem of apply() back to those of the original one.
  void undo(const gradient_problem& p) const;
  void undo(const curve_problem& p) const;
  void undo(const solve_problem& p) const;

 private:
  void move_queries(score_problem& p);
  void move_scales(score_problem& p);
  const void* moved_query(const score_problem& p, const void* query);
  const double* moved_scale(const score_problem& p, const double* scale);

  int power_ = 0;  // exponent of 2: factor of the queries
  std::vector<aligned_buffer> queries_;
  std::vector<std::vector<double>> scales_;
};

}  // namespace attnscale::detail
