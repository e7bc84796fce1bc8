// SPDX-License-Identifier: BSD-3-Clause
//
// Argument checks of montecarlo.hpp, with the messages of the Python package.
#pragma once

#include <cstdint>
#include <vector>

#include "attnscale/montecarlo.hpp"

namespace attnscale::detail {

/// Elements, rows or samples [first, first + count) of a stream.
void check_range(std::int64_t first, std::int64_t count);
void check_variate(const variate& what);
void check_radius(double radius);
void check_score_rows(const score_rows_problem& problem);
void check_dot_products(const dot_products_problem& problem);
void check_projection(const projection& what, std::int64_t columns, std::int64_t n_points,
                      std::int64_t dim);
void check_comparison(std::int64_t dim_before, std::int64_t dim_after, std::int64_t n_points,
                      const std::vector<double>& eps);

}  // namespace attnscale::detail
