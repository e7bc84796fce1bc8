// SPDX-License-Identifier: BSD-3-Clause
//
// Entropy in a loss: queries follow the gradient of (entropy - 2)^2 until each attends to e^2 = 7.4
// keys. There is no value.
#include <attnscale/attention.hpp>
#include <attnscale/attention_gradients.hpp>
#include <cmath>
#include <cstdio>
#include <random>

static xt::xarray<double> normal_rows(std::size_t rows, std::mt19937& generator) {
  std::normal_distribution<double> normal;
  xt::xarray<double> numbers = xt::zeros<double>({rows, std::size_t(16)});
  for (double& each : numbers) each = normal(generator);
  return numbers;
}

int main() {
  std::mt19937 generator(0);
  xt::xarray<double> query = normal_rows(4, generator);
  const xt::xarray<double> key = normal_rows(100, generator);
  const double wanted = 2;

  for (int step = 0; step < 400; ++step) {
    const auto entropy = attnscale::attention_entropy(query, key);
    const xt::xarray<double> of_entropy = 2 * (entropy - wanted);
    const auto gradients = attnscale::attention_gradients(query, key, {}, {.entropy = of_entropy});
    query -= 0.5 * gradients.query;
  }

  double worst = 0;
  const auto entropy = attnscale::attention_entropy(query, key);
  for (const double each : entropy) worst = std::fmax(worst, std::abs(each - wanted));
  std::printf("entropy of 4 queries after 400 steps: %.6f nats at most from %g\n", worst, wanted);
  return worst < 1e-3 ? 0 : 1;
}
