// SPDX-License-Identifier: BSD-3-Clause
//
// Given points for a projection: centred and scaled so that float32 holds their squares.
#pragma once

#include <cstdint>
#include <vector>

#include "attnscale/johnson_lindenstrauss.hpp"

namespace attnscale::detail {

/// Points (n, dim), contiguous, less their mean and times a power of two, in double and only then
/// rounded: distances keep their digits whatever the points have in common, and ratios of distances
/// do not depend on the unit. Refuses points that are not finite, and points that are equal after
/// that.
template <class T>
std::vector<float> projected_points(const T* points, std::int64_t n, std::int64_t dim);

extern template std::vector<float> projected_points(const float*, std::int64_t, std::int64_t);
extern template std::vector<float> projected_points(const double*, std::int64_t, std::int64_t);

/// jl_distortion of points as given.
jl_distortion_result distort(const float* points, std::int64_t n, std::int64_t dim,
                             const jl_distortion_options& options);

}  // namespace attnscale::detail
