// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/johnson_lindenstrauss.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace test_johnson_lindenstrauss {

using attnscale::jl_distortion_options;
using attnscale::jl_min_dim;
using attnscale::jl_tail;

namespace {

/// Independent standard normal coordinates.
xt::xtensor<float, 2> normal_points(std::size_t n, std::size_t dim) {
  xt::xtensor<float, 2> points({n, dim});
  attnscale::fill(points.data(), static_cast<std::int64_t>(points.size()), {}, {7, 1});
  return points;
}

jl_distortion_options projected_to(std::int64_t k, std::vector<double> eps) {
  jl_distortion_options options;
  options.k = k;
  options.matrix.from = {5, 3};
  options.eps = std::move(eps);
  return options;
}

}  // namespace

TEST_CASE("dimensions of the lemma") {
  CHECK(jl_min_dim(512, {.eps = 0.1}) == 5348);
  CHECK(jl_min_dim(512, {.eps = 0.5}) == 300);
  CHECK(jl_min_dim(512, {.eps = 0.9}) == 155);
  CHECK(jl_min_dim(1, {.eps = 0.5}) == 1);
  CHECK(jl_min_dim(1, {.eps = 0.5, .failure_probability = 0.1}) == 1);
  CHECK(jl_min_dim(512, {.eps = 0.5, .failure_probability = 0.01}) == 410);
  CHECK(jl_min_dim(1e30, {.eps = 0.5, .failure_probability = 1e-9}) == 3814);
}

TEST_CASE("the exponent of chi-square asks for fewer dimensions, and for 13.04 ln n at least") {
  for (const double eps : {1e-3, 0.1, 0.5, 0.9, 0.999999}) {
    const std::int64_t relaxed = jl_min_dim(1e6, {.eps = eps});
    const std::int64_t exact = jl_min_dim(1e6, {.eps = eps, .tail = jl_tail::chi_square});
    CHECK(exact <= relaxed);
    CHECK(static_cast<double>(relaxed) >= 24 * std::log(1e6));
    CHECK(static_cast<double>(exact) >= 4 / (1 - std::log(2.0)) * std::log(1e6));
  }
  CHECK(jl_min_dim(512, {.eps = 0.5, .tail = jl_tail::chi_square}) == 264);
}

TEST_CASE("the union bound is tight: one dimension less allows more failures") {
  for (const jl_tail tail : {jl_tail::relaxed, jl_tail::chi_square}) {
    const double eps = 0.6, allowed = 0.01, n = 100;
    const double rate =
        tail == jl_tail::relaxed ? eps * eps / 2 - eps * eps * eps / 3 : eps - std::log1p(eps);
    const auto k = static_cast<double>(
        jl_min_dim(n, {.eps = eps, .failure_probability = allowed, .tail = tail}));
    CHECK(n * (n - 1) * std::exp(-k * rate / 2) <= allowed);
    CHECK(n * (n - 1) * std::exp(-(k - 1) * rate / 2) > allowed);
  }
}

TEST_CASE("the rule of thumb and the dimension that it gives n keys") {
  CHECK(attnscale::jl_rule_of_thumb(512) == doctest::Approx(8 * std::log(512.0)));
  CHECK(attnscale::jl_rule_of_thumb(1e5, attnscale::golden_dimension) ==
        doctest::Approx(95.69944).epsilon(1e-5));
  CHECK(attnscale::golden_dimension ==
        doctest::Approx(4 / std::log((1 + std::sqrt(5.0)) / 2)).epsilon(1e-14));
  CHECK(attnscale::equivalent_head_dim(512.0 * 512, 64) == doctest::Approx(128));
  CHECK(attnscale::equivalent_head_dim(1024, 64, 32) == doctest::Approx(128));
}

TEST_CASE("expressions are answered number by number, in their shape") {
  const xt::xarray<double> n = {{1, 512}, {1e6, 1e9}};
  const auto dims = jl_min_dim(2 * n, {.eps = 0.5});
  const auto rule = attnscale::jl_rule_of_thumb(n), width = attnscale::equivalent_head_dim(n, 64);
  REQUIRE(dims.shape() == n.shape());
  for (std::size_t i = 0; i < n.size(); ++i) {
    CHECK(dims.flat(i) == jl_min_dim(2 * n.flat(i), {.eps = 0.5}));
    CHECK(rule.flat(i) == attnscale::jl_rule_of_thumb(n.flat(i)));
    CHECK(width.flat(i) == attnscale::equivalent_head_dim(n.flat(i), 64));
  }
}

TEST_CASE("distortion is that of the projected points, pair by pair") {
  const auto points = normal_points(40, 100);
  jl_distortion_options options = projected_to(30, {0.2, 0.5});
  options.keep_ratios = true;
  std::vector<float> after(40 * 30);
  attnscale::project(after.data(), 30, points.data(), 40, 100, options.matrix);
  const auto found = attnscale::jl_distortion(points, options);
  REQUIRE(found.ratios.size() == 40 * 39 / 2);

  double worst = 0, sum = 0;
  int outside = 0;
  std::size_t pair = 0;
  for (std::size_t i = 0; i < 40; ++i)
    for (std::size_t j = i + 1; j < 40; ++j, ++pair) {
      double was = 0, is = 0;
      for (std::size_t c = 0; c < 100; ++c) was += std::pow(points(i, c) - points(j, c), 2);
      for (std::size_t c = 0; c < 30; ++c) is += std::pow(after[30 * i + c] - after[30 * j + c], 2);
      CHECK(found.ratios[pair] == doctest::Approx(is / was).epsilon(1e-6));
      worst = std::max(worst, std::abs(is / was - 1));
      outside += std::abs(is / was - 1) > 0.2;
      sum += is / was;
    }
  CHECK(found.distortion == doctest::Approx(worst).epsilon(1e-5));
  CHECK(found.mean == doctest::Approx(sum / 780).epsilon(1e-5));
  CHECK(found.shares[0].outside == doctest::Approx(outside / 780.0));
  CHECK(found.shares[1].keeps_all == (found.shares[1].outside == 0));
}

TEST_CASE("what the lemma promises is kept") {
  const auto points = normal_points(100, 400);
  const std::int64_t k = jl_min_dim(100, {.eps = 0.5, .failure_probability = 1e-3});
  for (const auto kind : {attnscale::projection_kind::gaussian, attnscale::projection_kind::sign,
                          attnscale::projection_kind::sparse}) {
    jl_distortion_options options = projected_to(k, {0.5});
    options.matrix.kind = kind;
    const auto found = attnscale::jl_distortion(points, options);
    CHECK(found.shares[0].keeps_all);
    CHECK(found.shares[0].failure_bound <= 1e-3);
    CHECK(found.shares[0].outside_bound < found.shares[0].failure_bound);
    CHECK(found.ratios.empty());
  }
  const auto rough = attnscale::jl_distortion(points, projected_to(4, {0.5}));
  CHECK(rough.shares[0].outside > 0.2);
  CHECK(rough.shares[0].failure_bound == 1);
}

TEST_CASE("points of any layout and of double are the same points") {
  const auto points = normal_points(20, 30);
  const auto options = projected_to(10, {0.5});
  const auto expected = attnscale::jl_distortion(points, options);
  const xt::xtensor<float, 2, xt::layout_type::column_major> columns = points;
  const xt::xarray<double> doubles = xt::cast<double>(points);
  const auto every_second = normal_points(40, 30);
  CHECK(attnscale::jl_distortion(columns, options).distortion == expected.distortion);
  CHECK(attnscale::jl_distortion(doubles, options).variance == expected.variance);
  const auto view = xt::view(every_second, xt::range(0, 40, 2), xt::all());
  const xt::xtensor<float, 2> copy = view;
  CHECK(attnscale::jl_distortion(view, options).least ==
        attnscale::jl_distortion(copy, options).least);
}

TEST_CASE("neither the origin nor the unit of points changes what is found") {
  const auto points = normal_points(40, 100);
  auto options = projected_to(30, {0.5});
  options.keep_ratios = true;
  const auto expected = attnscale::jl_distortion(points, options);
  CHECK(expected.distortion > 0.5);
  const auto check = [&](const auto& moved, double near) {
    const auto found = attnscale::jl_distortion(moved, options);
    CHECK(found.distortion == doctest::Approx(expected.distortion).epsilon(near));
    CHECK(found.mean == doctest::Approx(expected.mean).epsilon(near));
    CHECK(found.variance == doctest::Approx(expected.variance).epsilon(near));
    CHECK(found.shares[0].outside == expected.shares[0].outside);
    CHECK(found.ratios[7] == doctest::Approx(expected.ratios[7]).epsilon(near));
  };
  const xt::xtensor<double, 2> wide = xt::cast<double>(points);
  for (const double offset : {1e6, -1e8}) check(xt::xtensor<double, 2>(wide + offset), 1e-5);
  for (const double unit : {1e19, 1e-25, 1e300, 1e-300, 0x1p200})
    check(xt::xtensor<double, 2>(wide * unit + 1e3 * unit), 1e-5);
  for (const float unit : {1e19F, 1e-25F, 1e37F}) check(xt::xtensor<float, 2>(points * unit), 1e-5);
}

TEST_CASE("the ratio of a near pair has the digits that are promised") {
  xt::xtensor<double, 2> points = xt::cast<double>(normal_points(40, 100));
  const xt::xtensor<float, 2> step = normal_points(1, 100);
  auto options = projected_to(30, {0.5});
  options.keep_ratios = true;
  std::vector<float> after(30);
  attnscale::project(after.data(), 30, step.data(), 1, 100, options.matrix);
  double was = 0, is = 0;
  for (const float x : step) was += double(x) * double(x);
  for (const float x : after) is += double(x) * double(x);
  for (const double near : {1.0, 1e-2, 1e-3, 1e-4}) {
    for (std::size_t c = 0; c < 100; ++c) points(1, c) = points(0, c) + near * double(step(0, c));
    const double ratio = attnscale::jl_distortion(points, options).ratios[0];
    CHECK(std::abs(ratio * was / is - 1) < 1e-6 / near);
  }
}

TEST_CASE("raw distances have any unit") {
  const auto points = normal_points(33, 70);
  std::vector<float> after(33 * 20);
  attnscale::project(after.data(), 20, points.data(), 33, 70, {.from = {5, 3}});
  const auto expected =
      attnscale::compare_distances(points.data(), 70, after.data(), 20, 33, {0.4});
  for (const float unit : {1e19F, 1e30F, 1e-25F}) {
    const xt::xtensor<float, 2> scaled = points * unit;
    std::vector<float> projected = after;
    for (float& x : projected) x *= unit;
    const auto found =
        attnscale::compare_distances(scaled.data(), 70, projected.data(), 20, 33, {0.4});
    CHECK(found.least == doctest::Approx(expected.least).epsilon(1e-5));
    CHECK(found.most == doctest::Approx(expected.most).epsilon(1e-5));
    CHECK(found.mean == doctest::Approx(expected.mean).epsilon(1e-5));
    CHECK(found.outside == expected.outside);
  }
  // A near pair among points that are far apart, whose squared distance float32 cannot represent.
  const std::vector<float> line{-1, 1, 1e-25F, 3e-25F}, kept{-1, 1, 1e-25F, 2e-25F};
  const auto found = attnscale::compare_distances(line.data(), 1, kept.data(), 1, 4, {});
  CHECK(found.least == doctest::Approx(0.25).epsilon(1e-5));
}

TEST_CASE("what is out of range is refused by name") {
  const auto points = normal_points(3, 4);
  const auto bad_points = [](float x) { return xt::xtensor<float, 2>({{x, 1.0F}, {2.0F, 3.0F}}); };
  CHECK_THROWS_WITH(jl_min_dim(512, {}), "eps must be in (0, 1), got nan");
  CHECK_THROWS_WITH(jl_min_dim(512, {.eps = 1}), "eps must be in (0, 1), got 1");
  CHECK_THROWS_WITH(jl_min_dim(0, {.eps = 0.5}), "n must be at least 1, got 0");
  CHECK_THROWS_WITH(jl_min_dim(INFINITY, {.eps = 0.5}), "n must be finite, got inf");
  CHECK_THROWS_WITH(jl_min_dim(5, {.eps = 0.5, .failure_probability = 1.5}),
                    "failure_probability must be in (0, 1), got 1.5");
  CHECK_THROWS_WITH(jl_min_dim(5, {.eps = 1e-12}),
                    "eps must give a dimension that fits int64, got 1e-12");
  CHECK_THROWS_WITH(attnscale::jl_rule_of_thumb(512, 0), "constant must be greater than 0, got 0");
  CHECK_THROWS_WITH(attnscale::equivalent_head_dim(9, 64, 1), "n0 must be greater than 1, got 1");
  CHECK_THROWS_WITH(attnscale::jl_distortion(points, {}), "k must be at least 1, got 0");
  CHECK_THROWS_WITH(attnscale::jl_distortion(points, projected_to(2, {0.5, 2})),
                    "eps must be in (0, 1), got 2");
  CHECK_THROWS_WITH(attnscale::jl_distortion(normal_points(1, 4), projected_to(2, {0.5})),
                    "points must have shape (n, dim) with n of at least 2, got (1, 4)");
  CHECK_THROWS_WITH(attnscale::jl_distortion(xt::xarray<float>({1, 2}), projected_to(2, {0.5})),
                    "points must have shape (n, dim), got 1 axes");
  CHECK_THROWS_WITH(attnscale::jl_distortion(bad_points(NAN), projected_to(2, {0.5})),
                    "points must be finite, got nan");
  const std::string equal =
      "points must be distinct in float32, once their mean is taken off, got two equal ones, whose "
      "distance has no ratio";
  const xt::xtensor<double, 2> near{{1, 2}, {1, 2 + 1e-12}, {5, 6}},
      same = xt::ones<double>({3, 4});
  CHECK_THROWS_WITH(attnscale::jl_distortion(near, projected_to(2, {0.5})), equal.c_str());
  CHECK_THROWS_WITH(attnscale::jl_distortion(same, projected_to(2, {0.5})), equal.c_str());
  CHECK_THROWS_WITH(attnscale::jl_distortion(points, projected_to(1LL << 62, {0.5})),
                    "k must be small enough for memory, got 4611686018427387904 with rows of 3 "
                    "numbers");
  CHECK_THROWS_WITH(
      attnscale::jl_distortion(static_cast<const float*>(nullptr), 3, 4, projected_to(2, {0.5})),
      "points must point at memory for 12 elements, got a null pointer");
  CHECK_THROWS_WITH(jl_min_dim(5, {.eps = 0.5, .tail = jl_tail(9)}),
                    "tail must be an enumerator of its type, from 0 to 1, got 9");
  auto options = projected_to(2, {0.5});
  options.tail = jl_tail(9);
  CHECK_THROWS_WITH(attnscale::jl_distortion(points, options),
                    "tail must be an enumerator of its type, from 0 to 1, got 9");
  options = projected_to(2, {0.5});
  options.how.num_threads = -7;
  CHECK_THROWS_WITH(attnscale::jl_distortion(points, options),
                    "num_threads must be at least 1, or 0 for the default, got -7");
}

}  // namespace test_johnson_lindenstrauss
