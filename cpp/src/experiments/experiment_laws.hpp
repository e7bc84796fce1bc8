// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attnscale/experiments.hpp"

namespace attnscale::detail {

/// Multiples of 1 / sqrt(head_dim) of laws, and the spellings of the laws.
struct betas_of_laws {
  std::vector<double> betas{};
  std::vector<std::string> names{};
};

/// Reads the laws for the last of n causal queries. Refuses an empty list, laws without one number
/// for the whole row, and numbers that are negative or not finite.
betas_of_laws read_laws(const std::vector<law_or_scale>& laws, std::int64_t n,
                        std::int64_t head_dim);

}  // namespace attnscale::detail
