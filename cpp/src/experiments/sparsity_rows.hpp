// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attnscale/normalizer.hpp"
#include "experiments/experiment_rows.hpp"

namespace attnscale::detail {

/// Rows of random scores under multipliers and normalizers, as keys of one channel in double.
class sparsity_rows {
 public:
  /// Refuses normalizers whose rows lack a statistic, and row numbers that are not single numbers.
  sparsity_rows(const random_scores_case& scores, std::vector<double> betas,
                const std::vector<normalizer_choice>& normalizers);

  /// Names that identify the normalizers.
  const std::vector<std::string>& names() const { return names_; }

  /// Draws support, entropy, concentration and largest weight: (count, betas, normalizers, 4).
  void draw(std::uint64_t key, std::int64_t first, std::int64_t count, double* out,
            const execution& how) const;

 private:
  random_scores_case scores_;
  std::vector<double> betas_;
  std::vector<normalizer_choice> normalizers_;
  std::vector<std::string> names_;
};

}  // namespace attnscale::detail
