// SPDX-License-Identifier: BSD-3-Clause
//
// Dimensions of a random projection for 200 points, by the lemma and by the rule of thumb "8 ln n",
// and the distortion of distances at each dimension.
#include <attnscale/johnson_lindenstrauss.hpp>
#include <cmath>
#include <cstdio>

int main() {
  const std::size_t n = 200, dim = 1000;
  xt::xtensor<float, 2> points({n, dim});
  attnscale::fill(points.data(), std::int64_t(points.size()), {}, {.key = 1, .stream = 0});

  const double eps = 0.5;
  const std::int64_t lemma = attnscale::jl_min_dim(n, {.eps = eps});
  const auto rule = std::int64_t(std::ceil(attnscale::jl_rule_of_thumb(n)));
  std::printf("n = %zu, eps = %.1f: the lemma asks for %lld dimensions, 8 ln n is %lld\n", n, eps,
              static_cast<long long>(lemma), static_cast<long long>(rule));

  bool kept = true;
  for (const std::int64_t k : {rule, lemma}) {
    attnscale::jl_distortion_options options;
    options.k = k;
    options.eps = {eps};
    options.matrix.from = {.key = 1, .stream = 1};
    const auto found = attnscale::jl_distortion(points, options);
    const attnscale::jl_share& share = found.shares[0];
    std::printf("k = %3lld: largest change %.3f, outside %.5f of the pairs (bound %.5f)\n",
                static_cast<long long>(k), found.distortion, share.outside, share.outside_bound);
    kept = k == rule ? !share.keeps_all : share.keeps_all;
    if (!kept) break;
  }
  return kept ? 0 : 1;
}
