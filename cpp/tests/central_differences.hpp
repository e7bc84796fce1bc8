// SPDX-License-Identifier: BSD-3-Clause
//
// Gradients by central differences.
#pragma once

#include <cstddef>

#include "attnscale/detail/xtensor_compat.hpp"

namespace testing {

/// Gradient of the loss by each number of `at`, which loss() reads.
template <class Loss>
xt::xarray<double> differences(xt::xarray<double>& at, Loss loss) {
  xt::xarray<double> found = xt::zeros<double>(at.shape());
  constexpr double step = 3e-6;
  for (std::size_t i = 0; i < at.size(); ++i) {
    const double kept = at.flat(i);
    at.flat(i) = kept + step;
    const double above = loss();
    at.flat(i) = kept - step;
    found.flat(i) = (above - loss()) / (2 * step);
    at.flat(i) = kept;
  }
  return found;
}

}  // namespace testing
