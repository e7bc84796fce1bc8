// SPDX-License-Identifier: BSD-3-Clause
//
// Linear attention over a text in chunks: a state keeps sums of constant size, and each chunk's
// rows equal those of one causal call over the whole text.
#include <attnscale/linear_attention.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>

static xt::xarray<float> normal_rows(std::size_t heads, std::size_t rows, std::size_t dim,
                                     std::mt19937& generator) {
  std::normal_distribution<float> normal;
  xt::xarray<float> numbers = xt::zeros<float>({heads, rows, dim});
  for (float& each : numbers) each = normal(generator);
  return numbers;
}

int main() {
  const std::size_t heads = 4, n = 1000, dim = 16, chunk = 96;
  std::mt19937 generator(0);
  const xt::xarray<float> query = normal_rows(heads, n, dim, generator);
  const xt::xarray<float> key = normal_rows(heads, n, dim, generator);
  const xt::xarray<float> value = normal_rows(heads, n, dim, generator);
  const auto whole = attnscale::linear_attention(query, key, value, {.is_causal = true});

  attnscale::linear_state state;
  double worst = 0;
  for (std::size_t first = 0; first < n; first += chunk) {
    const std::size_t last = first + chunk < n ? first + chunk : n;
    const auto rows = [&](const auto& array) {
      return xt::view(array, xt::all(), xt::range(first, last));
    };
    const auto output = state.extend(rows(query), rows(key), rows(value));
    const auto wanted = rows(whole);
    auto expected = wanted.begin();
    for (const float each : output)
      worst = std::fmax(worst, std::abs(double(each) - double(*expected++)));
  }
  std::printf("%lld keys in chunks of %zu: rows are at most %.1e from those of one call\n",
              static_cast<long long>(state.n_keys()), chunk, worst);
  return state.n_keys() == static_cast<std::int64_t>(n) && worst < 1e-5 ? 0 : 1;
}
