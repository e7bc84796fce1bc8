// SPDX-License-Identifier: BSD-3-Clause
//
// The entropy of a row of attention weights over identical keys is ln n, whatever the query and the
// scale: causal attention shows n = 1, 2, 3 ...
#include <attnscale/attention.hpp>
#include <attnscale/simd_level.hpp>
#include <cmath>
#include <cstdio>

int main() {
  const xt::xtensor<float, 2> query = xt::ones<float>({1000, 64}) * 0.25f;
  const xt::xtensor<float, 2> key = xt::ones<float>({1000, 64}) * 0.5f;

  attnscale::attention_options options;
  options.is_causal = true;
  const auto entropy = attnscale::attention_entropy(query, key, options);

  const std::string_view level = attnscale::simd_level();
  std::printf("SIMD level %.*s\n", int(level.size()), level.data());
  double worst = 0;
  for (const int n : {1, 10, 100, 1000}) {
    const double seen = double(entropy(n - 1));
    std::printf("n = %4d: entropy %.6f nats, ln n = %.6f\n", n, seen, std::log(double(n)));
    worst = std::fmax(worst, std::abs(seen - std::log(double(n))));
  }
  return worst < 1e-5 ? 0 : 1;
}
