// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "attnscale/refuse.hpp"
#include "attnscale/scale_law.hpp"

namespace attnscale::detail {

/// A scale multiplies whole rows, all channels and all keys alike, before any score is known.
inline void require_one_scale_a_row(const scale_law& law) {
  const std::string start = "law '" + std::string(law.name()) + "' ";
  if (law.acts_on_some_channels()) refuse(start + "acts on some channels only, and a scale on all");
  if (law.meaning() == n_means::query_key_distance)
    refuse(start + "gives the keys of a row different scales, and scale takes one a row");
  if (law.meaning() == n_means::row_entropy || law.meaning() == n_means::row_gaps ||
      law.meaning() == n_means::row_spread)
    refuse(start + "counts what is measured on a row: measure it, and give scale an array");
}

}  // namespace attnscale::detail
