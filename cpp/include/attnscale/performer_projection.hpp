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

/// How the directions are drawn.
struct performer_projection_options {
  bool orthogonal = true;  ///< otherwise all rows are independent, and the estimate varies more
  random_stream from{};
};

/// Writes what performer_projection() returns.
ATTNSCALE_EXPORT void draw_projection(std::int64_t features, std::int64_t head_dim,
                                      const performer_projection_options& options, double* rows);

/// Random directions (features, head_dim), each row standard normal; the rows of a block of
/// head_dim are orthogonal: a rotation, its rows stretched by lengths of independent normal
/// vectors. The numbers are those of the stream, and not those that Python draws.
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
