// SPDX-License-Identifier: BSD-3-Clause
//
// Reason for the scale 1 / sqrt(d): the variance of q . k is d, if the components of q and k are
// independent with variance 1, whatever their distribution.
#include <attnscale/experiments.hpp>
#include <cmath>
#include <cstdio>

int main() {
  std::printf("%6s %12s %10s %14s\n", "d", "variance", "error", "kurtosis");
  bool within = true;
  for (const std::int64_t d : {1, 16, 64, 256}) {
    const auto found = attnscale::dot_product_variance({.head_dim = d}, {.seed = 0});
    const attnscale::estimate& kurtosis = found.at("kurtosis");
    std::printf("%6lld %12.3f %10.3f %7.3f +- %.3f\n", static_cast<long long>(d), found.value(),
                found.standard_error(), kurtosis.value, kurtosis.standard_error);
    const double exact = static_cast<double>(d);
    within &= std::abs(found.value() - exact) < 4 * found.standard_error();
  }
  return within ? 0 : 1;
}
