// SPDX-License-Identifier: BSD-3-Clause
//
// Scales so far from 1, or products of query and key, that products without a scale may leave the
// type, while scores do not: a power of two, half of that of the scales, moves into the queries. It
// changes no digit.
#pragma once

#include <vector>

#include "attnscale/problem.hpp"
#include "machine/scratch.hpp"

namespace attnscale::detail {

class near_scales {
 public:
  explicit near_scales(const attention_problem& p);
  explicit near_scales(const curve_problem& p);
  /// There is no scale yet: by the size of the products, of some rows.
  explicit near_scales(const solve_problem& p);

  /// Whether something has to move.
  bool needed() const { return power_ != 0; }
  /// The problem gets queries and scales of its own, which live as long as this.
  void apply(attention_problem& p);
  void apply(curve_problem& p);
  void apply(solve_problem& p) { move_queries(p); }
  /// Results of what apply() made, as those of what was given.
  void give_back(const gradient_problem& p) const;
  void give_back(const curve_problem& p) const;
  void give_back(const solve_problem& p) const;

 private:
  void move_queries(score_problem& p);
  const void* moved_query(const score_problem& p, const void* query);
  const double* moved_scale(const score_problem& p, const double* scale);

  int power_ = 0;  // of 2: what the queries are multiplied by
  std::vector<aligned_buffer> queries_;
  std::vector<std::vector<double>> scales_;
};

}  // namespace attnscale::detail
