// SPDX-License-Identifier: BSD-3-Clause
//
// Given points as a projection takes them: centred and brought to a size whose squares float32
// holds.
#pragma once

#include <cstdint>
#include <vector>

#include "attnscale/johnson_lindenstrauss.hpp"

namespace attnscale::detail {

/// Points (n, dim), contiguous, less their mean and times a power of two, in double and only then
/// rounded: distances keep their digits whatever the points have in common, and ratios of distances
/// do not depend on the unit. Refuses what is not finite, and points that are equal after that.
template <class T>
std::vector<float> projected_points(const T* points, std::int64_t n, std::int64_t dim);

extern template std::vector<float> projected_points(const float*, std::int64_t, std::int64_t);
extern template std::vector<float> projected_points(const double*, std::int64_t, std::int64_t);

/// jl_distortion of points as they are.
jl_distortion_result distort(const float* points, std::int64_t n, std::int64_t dim,
                             const jl_distortion_options& options);

}  // namespace attnscale::detail
