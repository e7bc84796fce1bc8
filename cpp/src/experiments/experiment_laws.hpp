// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attnscale/experiments.hpp"

namespace attnscale::detail {

/// The multiples of 1 / sqrt(head_dim) that laws stand for, and how the laws are spelled.
struct betas_of_laws {
  std::vector<double> betas{};
  std::vector<std::string> names{};
};

/// Of the last of n causal queries. Refuses no law, laws that have no number of a whole row there,
/// and numbers that are negative or not finite.
betas_of_laws read_laws(const std::vector<law_or_scale>& laws, std::int64_t n,
                        std::int64_t head_dim);

}  // namespace attnscale::detail
