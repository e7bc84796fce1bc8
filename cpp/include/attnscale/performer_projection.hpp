// SPDX-License-Identifier: BSD-3-Clause
//
// The random directions of Performer attention (Choromanski et al. 2021, arXiv 2009.14794).
#pragma once

#include <cstdint>

#include "attnscale/dense_array.hpp"
#include "attnscale/detail/refuse.hpp"
#include "attnscale/detail/strided_array.hpp"
#include "attnscale/montecarlo.hpp"

namespace attnscale {

/// Options of performer_projection().
struct performer_projection_options {
  bool orthogonal = true;  ///< otherwise rows are independent, and the estimate varies more
  random_stream from{};
};

/// Writes the result of performer_projection().
ATTNSCALE_EXPORT void draw_projection(std::int64_t features, std::int64_t head_dim,
                                      const performer_projection_options& options, double* rows);

/// Random directions (features, head_dim), each row standard normal; the rows of a block of
/// head_dim are orthogonal: a rotation, with rows scaled by lengths of independent normal vectors.
/// The numbers differ from those of the Python function.
template <class T = double>
dense_array<T> performer_projection(std::int64_t features, std::int64_t head_dim,
                                    const performer_projection_options& options = {}) {
  detail::check_at_least("features", features, 1);
  detail::check_at_least("head_dim", head_dim, 1);
  auto directions = detail::new_array<T>({}, {features, head_dim});
  draw_projection(features, head_dim, options, directions.data());
  return directions;
}

}  // namespace attnscale
