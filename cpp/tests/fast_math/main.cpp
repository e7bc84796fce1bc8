// SPDX-License-Identifier: BSD-3-Clause
//
// The core inside a project compiled with -ffast-math, against plain loops: attention under a
// causal mask, which is made of infinities, a count that rounding could change, and subnormal
// numbers.
#include <attnscale/attention.hpp>
#include <attnscale/johnson_lindenstrauss.hpp>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>

namespace {

constexpr std::size_t rows = 9, width = 5;
constexpr double scale = 0.3;

using matrix = xt::xtensor<double, 2>;

matrix waves(double step) {
  matrix made({rows, width});
  for (std::size_t i = 0; i < made.size(); ++i) made.flat(i) = std::sin(step * double(i));
  return made;
}

/// Element (i, c) of the output, in plain loops.
double expected(const matrix& query, const matrix& key, const matrix& value, std::size_t i,
                std::size_t c) {
  double sum = 0, weighted = 0;
  for (std::size_t j = 0; j <= i; ++j) {
    double score = 0;
    for (std::size_t d = 0; d < width; ++d) score += query(i, d) * key(j, d);
    const double weight = std::exp(scale * score);
    sum += weight;
    weighted += weight * value(j, c);
  }
  return weighted / sum;
}

double worst_difference() {
  const matrix query = waves(0.7), key = waves(1.1), value = waves(1.9);
  const auto output = attnscale::attention(query, key, value, {.scale = scale, .is_causal = true});
  double worst = 0;
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t c = 0; c < width; ++c)
      worst = std::fmax(worst, std::abs(output(i, c) - expected(query, key, value, i, c)));
  return worst;
}

}  // namespace

int main() {
  const double worst = worst_difference();
  const auto dimensions = attnscale::jl_min_dim(100, {.eps = 0.5});
  volatile double smallest = std::numeric_limits<double>::min();
  const bool keeps_subnormals = smallest / 2 > 0;
  std::printf("inside -ffast-math: attention differs by %.1e, jl_min_dim is %lld, subnormals %s\n",
              worst, static_cast<long long>(dimensions), keeps_subnormals ? "stay" : "are zero");
  return worst < 1e-14 && dimensions == 222 && keeps_subnormals ? 0 : 1;
}
