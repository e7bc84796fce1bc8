// SPDX-License-Identifier: BSD-3-Clause
//
// Variants of attention. Local and global attention is exact attention under a mask, a window with
// a few positions that all others see, in less time; a hybrid has exact attention in some heads and
// linear-time attention in the others.
#include <attnscale/attention.hpp>
#include <attnscale/hybrid.hpp>
#include <attnscale/local_global_attention.hpp>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <random>

static xt::xarray<float> normal_rows(std::size_t heads, std::size_t rows, std::size_t dim,
                                     std::mt19937& generator) {
  std::normal_distribution<float> normal;
  xt::xarray<float> numbers = xt::zeros<float>({heads, rows, dim});
  for (float& each : numbers) each = normal(generator);
  return numbers;
}

template <class A, class B>
static double largest_difference(const A& seen, const B& wanted) {
  double worst = 0;
  auto expected = wanted.begin();
  for (const float each : seen)
    worst = std::fmax(worst, std::abs(double(each) - double(*expected++)));
  return worst;
}

int main() {
  const std::size_t heads = 4, n = 1000, dim = 16;
  std::mt19937 generator(0);
  const xt::xarray<float> query = normal_rows(heads, n, dim, generator);
  const xt::xarray<float> key = normal_rows(heads, n, dim, generator);
  const xt::xarray<float> value = normal_rows(heads, n, dim, generator);

  xt::xarray<bool> mask = xt::zeros<bool>({n, n});
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j <= i; ++j) mask(i, j) = i - j <= 64 || j < 4;
  const auto masked = attnscale::attention(query, key, value, {.attn_mask = mask});
  const auto local = attnscale::local_global_attention(
      query, key, value, {.radius = 64, .global_tokens = 4, .is_causal = true});
  const double apart = largest_difference(local, masked);
  std::printf("window and global positions: at most %.1e from exact attention under the mask\n",
              apart);

  const attnscale::attention_options exact{.scale = attnscale::laws::log_n{.base = 512}};
  const attnscale::linear_attention_options linear;
  const auto mixed =
      attnscale::hybrid(query, key, value, {exact, linear, linear, linear}, {.is_causal = true});
  const auto alone = attnscale::attention(xt::view(query, 0), xt::view(key, 0), xt::view(value, 0),
                                          {.scale = exact.scale, .is_causal = true});
  const double of_head = largest_difference(xt::view(mixed, 0), alone);
  std::printf("hybrid: its exact head is at most %.1e from that head alone\n", of_head);
  return apart < 1e-5 && of_head < 1e-5 ? 0 : 1;
}
