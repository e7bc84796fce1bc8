// SPDX-License-Identifier: BSD-3-Clause
//
// Random numbers and what is simulated with them. A number depends on key, stream and index alone:
// results are the same bits for any number of threads, any split of the work and any SIMD level.
#pragma once

#include <array>
#include <cstdint>

#include "attnscale/problem.hpp"
#include "attnscale/types.hpp"

namespace attnscale {

/// One block of Philox4x32-10: the generator of everything here.
std::array<std::uint32_t, 4> philox4x32_10(const std::array<std::uint32_t, 4>& counter,
                                           const std::array<std::uint32_t, 2>& key);

/// A distribution and its parameters.
struct variate {
  distribution kind = distribution::normal;
  double a = 0;     ///< mean; uniform: start of the interval
  double b = 1;     ///< standard deviation, of laplace the scale; uniform: end of the interval
  double low = -2;  ///< truncated_normal: interval in standard deviations from the mean, not
  double high = 2;  ///< rescaled; beyond 37.5 all of it counts as its inner end
};

/// out[i] = element first + i of the stream. Throws attnscale::interrupted.
void fill(float* out, std::int64_t count, const variate& what, const random_stream& from,
          std::int64_t first = 0, const execution& how = {});
void fill(double* out, std::int64_t count, const variate& what, const random_stream& from,
          std::int64_t first = 0, const execution& how = {});

/// Rows first ... first + count - 1 of points that are uniform on the sphere of that radius,
/// contiguous (count, dim).
void fill_sphere(float* out, std::int64_t count, std::int64_t dim, double radius,
                 const random_stream& from, std::int64_t first = 0, const execution& how = {});
void fill_sphere(double* out, std::int64_t count, std::int64_t dim, double radius,
                 const random_stream& from, std::int64_t first = 0, const execution& how = {});

}  // namespace attnscale
