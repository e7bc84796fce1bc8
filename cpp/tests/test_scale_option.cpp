// SPDX-License-Identifier: BSD-3-Clause
//
// A law as attention_options::scale, with its n counted for each query of the call.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>

#include "attnscale/attention.hpp"
#include "attnscale/scale_law.hpp"

namespace test_scale_option {

using attnscale::attention_entropy;
using attnscale::attention_options;
using attnscale::scale_law;
namespace laws = attnscale::laws;

namespace {

constexpr std::size_t batches = 2, heads = 2, n_queries = 7, n_keys = 9, head_dim = 4;

xt::xtensor<double, 4> array_of(std::size_t rows, double step) {
  xt::xtensor<double, 4> array({batches, heads, rows, head_dim});
  for (std::size_t i = 0; i < array.size(); ++i)
    array.flat(i) = std::sin(step * static_cast<double>(i) + 1);
  return array;
}

/// Compares the entropy under the law with that under the array of its scales at n(batch, query).
void check_counts(attention_options options, const scale_law& law,
                  const std::function<double(std::size_t, std::size_t)>& n) {
  const auto query = array_of(n_queries, 0.37), key = array_of(n_keys, 0.61);
  xt::xtensor<double, 3> scales({batches, heads, n_queries});
  for (std::size_t b = 0; b < batches; ++b)
    for (std::size_t h = 0; h < heads; ++h)
      for (std::size_t i = 0; i < n_queries; ++i) scales(b, h, i) = law.scale(n(b, i), head_dim);
  options.scale = scales;
  const auto expected = attention_entropy(query, key, options);
  options.scale = law;
  const auto found = attention_entropy(query, key, options);
  REQUIRE(found.shape() == expected.shape());
  for (std::size_t i = 0; i < found.size(); ++i)
    CHECK((found.flat(i) == expected.flat(i) ||
           (std::isnan(found.flat(i)) && std::isnan(expected.flat(i)))));
}

}  // namespace

TEST_CASE("a law counts the keys that each query may see") {
  const scale_law law = laws::log_n{.base = 3};
  check_counts({}, law, [](auto, auto) { return 9; });
  check_counts({.is_causal = true}, law, [](auto, auto i) { return i + 1; });
  check_counts({.causal = attnscale::causal_alignment::bottom_right}, law,
               [](auto, auto i) { return i + 3; });
  check_counts({.window = {1, 1}}, law, [](auto, auto i) { return i == 0 ? 2 : 3; });
  check_counts({.key_lengths = xt::xarray<int>{4, 9}}, law,
               [](auto b, auto) { return b == 0 ? 4 : 9; });
  xt::xtensor<bool, 2> mask({n_queries, n_keys});
  mask.fill(false);
  for (std::size_t i = 0; i < n_queries; ++i)
    for (std::size_t j = 0; j <= i; j += 2) mask(i, j) = true;
  check_counts({.attn_mask = mask}, law, [](auto, auto i) { return i / 2 + 1; });
}

TEST_CASE("row size and position are not shortened by a mask or by the left side of a window") {
  xt::xtensor<bool, 2> mask({n_queries, n_keys});
  mask.fill(true);
  for (std::size_t i = 1; i < n_queries; ++i) mask(i, 0) = false;
  const attention_options options{
      .is_causal = true, .attn_mask = mask, .window = {2, attnscale::unbounded}};
  check_counts(options, laws::natural_log_n{}, [](auto, auto i) { return i + 1; });
  check_counts(options, laws::qwen_log_n{3}, [](auto, auto i) { return i + 1; });
  check_counts(options, laws::grok_temperature{2}, [](auto, auto i) { return i; });
  check_counts(options, laws::asentmax{1, 0.5, 2}, [](auto, auto i) { return i + 2; });
  check_counts({.key_lengths = xt::xarray<int>{4, 9}}, laws::natural_log_n{},
               [](auto b, auto) { return b == 0 ? 4 : 9; });
}

TEST_CASE("a law that counts nothing is one number, and a table holds a model's") {
  check_counts({.is_causal = true}, laws::constant{0.3}, [](auto, auto) { return 1; });
  check_counts({.is_causal = true},
               laws::table{{0, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6}, attnscale::n_means::visible_keys},
               [](auto, auto i) { return i + 1; });
}

TEST_CASE("a law may be spelled") {
  const auto query = array_of(n_queries, 0.37), key = array_of(n_keys, 0.61);
  const auto spelled = attention_entropy(query, key, {.scale = "log_n(base=3)"});
  CHECK(spelled == attention_entropy(query, key, {.scale = laws::log_n{.base = 3}}));
  CHECK(attention_entropy(query, key, {.scale = std::string("0.25")}) ==
        attention_entropy(query, key, {.scale = 0.25}));
  CHECK_THROWS_WITH(attention_entropy(query, key, {.scale = "log_n(base=1)"}),
                    "base must be greater than 1, got 1");
}

TEST_CASE("a row without keys stays what it is") {
  const auto query = array_of(n_queries, 0.37), key = array_of(n_keys, 0.61);
  const attention_options options{.scale = laws::log_n{}, .key_lengths = xt::xarray<int>{0, 9}};
  const auto entropy = attention_entropy(query, key, options);
  attention_options plain = options;
  plain.scale = 0.1;
  const auto expected = attention_entropy(query, key, plain);
  CHECK((entropy(0, 0, 0) == expected(0, 0, 0) ||
         (std::isnan(entropy(0, 0, 0)) && std::isnan(expected(0, 0, 0)))));
}

TEST_CASE("laws that are no scale of a row are refused") {
  const auto query = array_of(n_queries, 0.37), key = array_of(n_keys, 0.61);
  const auto entropy_under = [&](const scale_law& law) {
    return attention_entropy(query, key, {.scale = law});
  };
  CHECK_THROWS_WITH(entropy_under(laws::yarn{.factor = 4}),
                    "law 'yarn' acts on some channels only, but a scale acts on all");
  CHECK_THROWS_WITH(
      entropy_under(laws::critical_scale{}),
      "law 'critical_scale' needs a measurement of each row: measure it, and give scale an array");
  CHECK_THROWS_WITH(entropy_under(laws::table{{0, 1}, attnscale::n_means::visible_keys}),
                    "n must be a whole number below the 2 multipliers of the table, got 9");
}

}  // namespace test_scale_option
