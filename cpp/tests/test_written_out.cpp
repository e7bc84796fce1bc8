// SPDX-License-Identifier: BSD-3-Clause
//
// Full weight matrices, and perplexities of points computed with them.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "attnscale/attention_weights.hpp"
#include "attnscale/solve_perplexity.hpp"
#include "compare.hpp"

namespace test_written_out {

using attnscale::attention_options;
using attnscale::attention_weights;
using attnscale::solve_perplexity;
using attnscale::solve_perplexity_of_distances;
using namespace testing;
namespace normalizers = attnscale::normalizers;

namespace {

using numbers = xt::xarray<double>;

double farthest(const auto& a, const auto& b) { return xt::amax(xt::abs(a - b))(); }

/// exp of the entropy of a row of weights.
double perplexity_of(const auto& row) {
  double entropy = 0;
  for (const double p : row)
    if (p > 0) entropy -= p * std::log(p);
  return std::exp(entropy);
}

numbers squared_distances(const numbers& points) {
  numbers squared = xt::zeros<double>({points.shape(0), points.shape(0)});
  for (std::size_t i = 0; i < points.shape(0); ++i)
    for (std::size_t j = 0; j < points.shape(0); ++j)
      squared(i, j) = xt::sum(xt::square(xt::view(points, i) - xt::view(points, j)))();
  return squared;
}

}  // namespace

TEST_CASE("weights: those of the oracle, in one tile of keys and in several") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const std::size_t n_keys : {1, 40, 128, 129, 300}) {
      const inputs<T> in(23, n_keys, 6, 2);
      oracle::setting s = in.setting();
      const auto all = attention_weights(in.query, in.key);
      CHECK(farthest(all, oracle::attention(in.query, in.key, in.value, s).weights) <
            10 * bounds<T>::sums);
      for (std::size_t i = 0; i < 23; ++i)
        for (std::size_t j = 0; j < n_keys; ++j)
          s.visible(i, j) = j <= i + 120 && j + 30 >= i + 120;
      const auto some = attention_weights(
          in.query, in.key,
          {.causal = attnscale::causal_alignment::offset, .causal_offset = 120, .window = {30, 0}});
      CHECK(farthest(some, oracle::attention(in.query, in.key, in.value, s).weights) <
            10 * bounds<T>::sums);
    }
  });
}

TEST_CASE("weights: every head, rows without keys, sinks and other normalizers") {
  const auto q = normal<double>({2, 4, 5, 6}, 1), k = normal<double>({2, 2, 200, 6}, 2),
             v = normal<double>({2, 2, 200, 3}, 3);
  attention_options options{.key_lengths = xt::xarray<int>{0, 150}, .enable_gqa = true};
  const numbers sinks = normal<double>({4, 1}, 4);
  for (const auto& rule :
       {normalizers::softmax(), normalizers::sink(sinks), normalizers::sparsemax(),
        normalizers::sigmoid(-1), normalizers::top_k(3)}) {
    options.normalizer = rule;
    const auto weights = attention_weights(q, k, options);
    REQUIRE(weights.shape() == shape_type{2, 4, 5, 200});
    const auto output = attnscale::attention(q, k, v, options);
    for (std::size_t h = 0; h < 4; ++h) {
      CHECK(xt::amax(xt::abs(xt::view(weights, 0, h)))() == 0);
      const oracle::matrix w = xt::view(weights, 1, h), values = xt::view(v, 1, h / 2);
      CHECK(farthest(oracle::product(w, values), xt::view(output, 1, h)) < 1e-13);
    }
  }
}

TEST_CASE("weights: tiles have their shares where scores are large") {
  // Exact scores around 8192, where neighbouring floats are 2^-10 apart.
  constexpr std::size_t n = 640;
  xt::xarray<float> q = xt::ones<float>({std::size_t{4}, std::size_t{2}});
  xt::xarray<float> k = 8192 * xt::ones<float>({n, std::size_t{2}});
  for (std::size_t i = 0; i < 4; ++i) q(i, 1) = static_cast<float>(i + 1) / 64;
  for (std::size_t j = 0; j < n; ++j)
    k(j, 1) = static_cast<float>((j * 7919) % 61) / 16 - 16 * static_cast<float>(j / 128 % 3);
  const auto seen = attention_weights(q, k, {.scale = 1.0});
  const auto want = attention_weights(numbers(q), numbers(k), {.scale = 1.0});
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < n; j += 128) {
      double has = 0, should = 0;
      for (std::size_t c = j; c < j + 128; ++c) has += seen(i, c), should += want(i, c);
      CHECK(std::abs(has / should - 1) < 1.5e-4);
    }
}

TEST_CASE("weights: a matrix that is larger than allowed is refused before it is made") {
  const auto q = normal<float>({2, 5, 4}, 1);
  CHECK(attention_weights(q, q, {}, 200).size() == 50);
  try {
    attention_weights(q, q, {}, 199);
    CHECK(false);
  } catch (const attnscale::weights_too_large& error) {
    CHECK(std::string(error.what()) ==
          "the weights of 2 heads, 5 queries and 5 keys would take 200 bytes, more than max_bytes, "
          "199 bytes. attention_statistics has their entropy without the matrix, and fewer queries "
          "or heads make it smaller");
  }
  CHECK(refusal([&] { attention_weights(q, q, {}, 0); }) == "max_bytes must be at least 1, got 0");
}

TEST_CASE("perplexity: rows have the one that was asked for, at the widths that were found") {
  const numbers points = 100 + normal<double>({60, 5}, 1);
  numbers wanted = 5 + 20 * xt::abs(normal<double>({60}, 2)) / 3;
  const numbers squared = squared_distances(points);
  const auto found = solve_perplexity(points, wanted);
  const auto same = solve_perplexity_of_distances(squared, wanted);
  const auto narrow = solve_perplexity_of_distances(xt::xarray<float>(squared), wanted);
  for (std::size_t i = 0; i < 60; ++i) {
    CHECK(found.feasible(i));
    CHECK(found.converged(i));
    CHECK(found.affinities(i, i) == 0);
    CHECK(std::abs(perplexity_of(xt::view(found.affinities, i)) / wanted(i) - 1) < 1e-8);
    CHECK(std::abs(narrow.perplexity(i) / wanted(i) - 1) < 1e-5);
    numbers by_hand = xt::exp(-found.beta(i) * xt::view(squared, i));
    by_hand(i) = 0;
    by_hand /= xt::sum(by_hand)();
    CHECK(farthest(by_hand, xt::view(found.affinities, i)) < 1e-9);
  }
  CHECK(farthest(found.beta, same.beta) < 1e-7);
}

TEST_CASE("perplexity: the same in any unit") {
  const numbers points = normal<double>({40, 5}, 3), squared = squared_distances(points);
  const auto plain = solve_perplexity(points, 10.0);
  const auto check = [&](const auto& found, double unit, double tolerance) {
    for (std::size_t i = 0; i < 40; ++i) {
      CHECK(found.converged(i));
      CHECK(std::abs(found.beta(i) * unit / plain.beta(i) - 1) < tolerance);
      CHECK(std::abs(perplexity_of(xt::view(found.affinities, i)) - 10) < tolerance);
    }
  };
  for (const double unit : {1e-300, 1e-160, 1e158, 1e300})
    check(solve_perplexity_of_distances(numbers(squared * unit), 10.0), unit, 1e-7);
  for (const double unit : {0x1p-120, 0x1p110})
    check(solve_perplexity_of_distances(xt::xarray<float>(squared * unit), 10.0), unit, 2e-5);
  for (const double unit : {0x1p-500, 0x1p500})
    check(solve_perplexity(numbers(points * unit), 10.0), unit * unit, 1e-7);
  CHECK(!solve_perplexity(numbers(points * 1e-160), 10.0).converged(0));
}

TEST_CASE("perplexity: near neighbours far from the mean, ties, and k distances a row") {
  numbers points = normal<double>({12, 2}, 1);
  xt::view(points, xt::range(0, 6)) *= 1e-6;
  xt::view(points, xt::range(0, 6)) += 1e6;
  const auto found = solve_perplexity(points, 3.0);
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(found.feasible(i));
    CHECK(std::abs(perplexity_of(xt::view(found.affinities, i)) - 3) < 1e-6);
  }
  const numbers equal{{1, 1, 1}, {1, 2, 3}, {0, 0, 5}, {4, 1, 2}};
  const auto rows = solve_perplexity_of_distances(equal, 1.5);
  CHECK(!rows.feasible(0));
  CHECK(std::isnan(rows.beta(0)));
  CHECK(std::abs(rows.perplexity(0) - 3) < 1e-9);
  CHECK(!rows.feasible(2));
  CHECK(farthest(xt::view(rows.affinities, 2), numbers{0.5, 0.5, 0}) == 0);
  CHECK(rows.feasible(1));
  CHECK(std::abs(perplexity_of(xt::view(rows.affinities, 3)) - 1.5) < 1e-8);
}

TEST_CASE("perplexity: what is no table of points is refused") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(refusal([] {
          solve_perplexity(numbers{1, 2, 3});
        }) == "points must be an array (n, n_features) of at least two points, got shape (3,)");
  CHECK(refusal([&] {
          solve_perplexity(numbers{{1, 2}, {3, nan}});
        }) == "points must be finite, got NaN or infinity");
  CHECK(refusal([] {
          solve_perplexity(numbers{{1, 2}, {3, 4}}, 0.5);
        }) == "perplexity must be finite and at least 1, got 0.5");
  CHECK(refusal([] {
          solve_perplexity(numbers{{1, 2}, {3, 4}}, numbers{1, 2, 3});
        }) == "perplexity must broadcast to (n,) = (2,), got shape (3,)");
  CHECK(refusal([] {
          solve_perplexity_of_distances(numbers{{1, 2}, {3, -4}});
        }) == "squared distances must be at least 0, got -4");
  CHECK(refusal([] {
          solve_perplexity_of_distances(numbers{{1, 2, 3}, {3, 4, 5}});
        }) ==
        "points must be squared distances (n, n) or (n, k), of at most n columns, got shape "
        "(2, 3)");
}

}  // namespace test_written_out
