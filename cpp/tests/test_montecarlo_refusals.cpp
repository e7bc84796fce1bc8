// SPDX-License-Identifier: BSD-3-Clause
//
// Refusals of the calls of montecarlo.hpp, with their messages, and propagation of NaN.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "attnscale/montecarlo.hpp"

namespace test_montecarlo_refusals {

using attnscale::distribution;
using attnscale::dot_products_problem;
using attnscale::random_stream;
using attnscale::score_model;
using attnscale::score_row;
using attnscale::score_rows_problem;
using attnscale::variate;

namespace {

constexpr random_stream source{42, 7};
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Message of the std::invalid_argument.
template <class F>
std::string refused(F call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

std::string of_fill(const variate& what, std::int64_t count = 4, std::int64_t first = 0) {
  std::array<float, 4> narrow{};
  std::array<double, 4> wide{};
  const std::string message = refused([&] { fill(wide.data(), count, what, source, first); });
  CHECK(refused([&] { fill(narrow.data(), count, what, source, first); }) == message);
  return message;
}

std::string of_sphere(std::int64_t count, std::int64_t dim, double radius, std::int64_t first) {
  std::array<double, 4> out{};
  return refused([&] { attnscale::fill_sphere(out.data(), count, dim, radius, source, first); });
}

std::string of_rows(const score_rows_problem& problem) {
  std::array<score_row, 4> out{};
  return refused([&] { run(problem, out.data()); });
}

std::string of_dots(const dot_products_problem& problem) {
  std::array<attnscale::power_sums, 4> out{};
  return refused([&] { run(problem, out.data()); });
}

std::string of_projection(std::int64_t columns, std::int64_t n_points, std::int64_t dim,
                          const attnscale::projection& how) {
  std::array<float, 4> points{1, 2, 3, 4}, out{};
  return refused(
      [&] { attnscale::project(out.data(), columns, points.data(), n_points, dim, how); });
}

std::string of_comparison(std::int64_t dim_before, std::int64_t dim_after, std::int64_t n_points,
                          const std::vector<double>& eps) {
  const std::array<float, 4> points{1, 2, 3, 4};
  return refused([&] {
    attnscale::compare_distances(points.data(), dim_before, points.data(), dim_after, n_points,
                                 eps);
  });
}

}  // namespace

TEST_CASE("distributions with parameters out of range are refused") {
  CHECK(of_fill({distribution::normal, 0, -1}) == "std must be at least 0, got -1");
  CHECK(of_fill({distribution::laplace, 0, -0.5}) == "scale must be at least 0, got -0.5");
  CHECK(of_fill({distribution::normal, not_a_number, 1}) == "mean must be finite, got nan");
  CHECK(of_fill({distribution::normal, 0, infinity}) == "std must be finite, got inf");
  CHECK(of_fill({distribution::uniform, 3, 2}) == "low must not be above high, got 3 and 2");
  CHECK(of_fill({distribution::uniform, 0, not_a_number}) == "high must be finite, got nan");
  CHECK(of_fill({distribution::truncated_normal, 0, 1, 2, 2}) ==
        "low must be below high, got 2 and 2");
  CHECK(of_fill({distribution::truncated_normal, 0, 1, not_a_number, 2}) ==
        "low must be below high, got nan and 2");
  CHECK(of_fill({distribution::truncated_normal, 0, 1, 0, infinity}) == "no error");
  CHECK(of_fill({}, -5) == "count must be at least 0, got -5");
  CHECK(of_fill({}, 4, -1) == "first must be at least 0, got -1");
  CHECK(of_fill({distribution::uniform, 2, 2}) == "no error");
  CHECK(of_fill({distribution::normal, 0, 0}, 0) == "no error");
}

TEST_CASE("spheres out of range are refused") {
  CHECK(of_sphere(1, 0, 1, 0) == "dim must be at least 1, got 0");
  CHECK(of_sphere(-5, 2, 1, 0) == "count must be at least 0, got -5");
  CHECK(of_sphere(1, 2, 1, -1) == "first must be at least 0, got -1");
  CHECK(of_sphere(1, 2, -2, 0) == "radius must be at least 0, got -2");
  CHECK(of_sphere(2, 2, 0, 0) == "no error");
}

TEST_CASE("simulated rows out of range are refused") {
  CHECK(of_rows({.n = 0}) == "n must be at least 1, got 0");
  CHECK(of_rows({.head_dim = -3}) == "head_dim must be at least 1, got -3");
  CHECK(of_rows({.count = -5}) == "count must be at least 0, got -5");
  CHECK(of_rows({.first = -1}) == "first must be at least 0, got -1");
  CHECK(of_rows({.model = score_model::correlated, .correlation = 1.5}) ==
        "correlation must be between 0 and 1, got 1.5");
  CHECK(of_rows({.correlation = not_a_number}) == "correlation must be between 0 and 1, got nan");
  CHECK(of_rows({.multipliers = {1, infinity}}) == "multipliers must be finite, got inf");
  CHECK(of_rows({.needle_cosine = 3}) == "needle_cosine must be between -1 and 1, or NaN, got 3");
  CHECK(of_rows({.multipliers = {1}, .needle_cosine = -1, .count = 2}) == "no error");
  std::array<double, 4> out{};
  const auto cosine = [&](std::int64_t count, std::int64_t n, std::int64_t head_dim) {
    return refused([&] { attnscale::max_cosine(out.data(), count, n, head_dim, source); });
  };
  CHECK(cosine(-5, 1, 1) == "count must be at least 0, got -5");
  CHECK(cosine(1, 0, 1) == "n must be at least 1, got 0");
  CHECK(cosine(1, 1, -3) == "head_dim must be at least 1, got -3");
}

TEST_CASE("sums of products out of range are refused") {
  CHECK(of_dots({.block = 0}) == "block must be at least 1, got 0");
  CHECK(of_dots({.head_dim = -3}) == "head_dim must be at least 1, got -3");
  CHECK(of_dots({.count = -5}) == "count must be at least 0, got -5");
  CHECK(of_dots({.first = -1}) == "first must be at least 0, got -1");
  CHECK(of_dots({.block = 10, .first = 5, .count = 10}) ==
        "first must be a multiple of block, 10, got 5");
  CHECK(of_dots({.y = {distribution::normal, 0, -1}}) == "std must be at least 0, got -1");
  CHECK(of_dots({.block = 10, .first = 20, .count = 15}) == "no error");
}

TEST_CASE("enumerators that are none are refused") {
  const auto rule = [](const char* name, int most) {
    return std::string(name) + " must be an enumerator of its type, from 0 to " +
           std::to_string(most) + ", got 9";
  };
  CHECK(of_fill({distribution(9)}) == rule("kind", 3));
  CHECK(of_rows({.model = score_model(9)}) == rule("model", 2));
  CHECK(of_dots({.y = {distribution(9)}}) == rule("kind", 3));
  CHECK(of_projection(2, 2, 2, {attnscale::projection_kind(9)}) == rule("kind", 2));
}

TEST_CASE("members that another member makes unread are refused") {
  CHECK(of_fill({.kind = distribution::normal, .low = -3}) ==
        "low and high go with distribution::truncated_normal, got -3 and 2");
  CHECK(of_rows({.correlation = 0.5}) == "correlation goes with score_model::correlated, got 0.5");
}

TEST_CASE("null pointers and sizes that no memory holds are refused") {
  const auto null = [](const char* name, int count) {
    return std::string(name) + " must point at memory for " + std::to_string(count) +
           (count == 1 ? " element" : " elements") + ", got a null pointer";
  };
  double* const nothing = nullptr;
  float* const narrow = nullptr;
  std::array<float, 4> four{};
  CHECK(refused([&] { attnscale::fill(nothing, 4, {}, source); }) == null("out", 4));
  CHECK(refused([&] { attnscale::fill(nothing, 0, {}, source); }) == "no error");
  CHECK(refused([&] { attnscale::fill_sphere(narrow, 4, 3, 1, source); }) == null("out", 12));
  CHECK(refused([&] { attnscale::max_cosine(nothing, 3, 4, 5, source); }) == null("out", 3));
  CHECK(refused([&] {
          run(score_rows_problem{.multipliers = {1}, .count = 1}, static_cast<score_row*>(nullptr));
        }) == null("out", 1));
  CHECK(refused([&] {
          run(dot_products_problem{.count = 2}, static_cast<attnscale::power_sums*>(nullptr));
        }) == null("out", 2));
  CHECK(refused([&] { attnscale::project(narrow, 2, four.data(), 2, 2, {}); }) == null("out", 4));
  CHECK(refused([&] { attnscale::project(four.data(), 2, narrow, 2, 2, {}); }) ==
        null("points", 4));
  CHECK(refused([&] { attnscale::compare_distances(four.data(), 2, narrow, 1, 2, {}); }) ==
        null("after", 2));
  CHECK(of_sphere(4, std::int64_t{1} << 62, 1, 0) ==
        "count must be small enough for memory, got 4 with rows of 4611686018427387904 numbers");
  CHECK(of_fill({}, 4, INT64_MAX) ==
        "first must be small enough for the last of count to be below 2^62, got "
        "9223372036854775807 with count 4");
}

TEST_CASE("a number of threads below 0 is refused, whatever there is to do") {
  const std::string rule = "num_threads must be at least 1, or 0 for the default, got -7";
  const attnscale::execution how{.num_threads = -7};
  std::array<double, 4> out{};
  std::array<score_row, 1> row{};
  std::array<attnscale::power_sums, 1> sums{};
  CHECK(refused([&] { attnscale::fill(out.data(), 4, {}, source, 0, how); }) == rule);
  CHECK(refused([&] { attnscale::fill(out.data(), 0, {}, source, 0, how); }) == rule);
  CHECK(refused([&] { attnscale::max_cosine(out.data(), 1, 4, 5, source, 0, how); }) == rule);
  CHECK(refused([&] {
          run(score_rows_problem{.multipliers = {1}, .count = 1}, row.data(), how);
        }) == rule);
  CHECK(refused([&] { run(dot_products_problem{.count = 1}, sums.data(), how); }) == rule);
}

TEST_CASE("projections out of range are refused") {
  using enum attnscale::projection_kind;
  CHECK(of_projection(0, 2, 2, {}) == "columns must be at least 1, got 0");
  CHECK(of_projection(2, -1, 2, {}) == "n_points must be at least 0, got -1");
  CHECK(of_projection(2, 2, 0, {}) == "dim must be at least 1, got 0");
  for (const double density : {7.0, 0.0, not_a_number})
    CHECK(of_projection(2, 2, 2, {sparse, density, source})
              .find("density must be above 0 and at most 1, got ") == 0);
  CHECK(of_projection(2, 2, 2, {sparse, 1, source}) == "no error");
  CHECK(of_projection(2, 2, 2, {gaussian, 7, source}) ==
        "density goes with projection_kind::sparse, got 7");
  CHECK(of_projection(1LL << 62, 2, 2, {}) ==
        "columns must be small enough for memory, got 4611686018427387904 with rows of 2 numbers");
  CHECK(of_comparison(0, 2, 2, {}) == "dim_before must be at least 1, got 0");
  CHECK(of_comparison(2, -2, 2, {}) == "dim_after must be at least 1, got -2");
  CHECK(of_comparison(2, 2, -2, {}) == "n_points must be at least 0, got -2");
  CHECK(of_comparison(2, 2, 2, {0.1, not_a_number}) == "eps must be at least 0, got nan");
  CHECK(of_comparison(2, 2, 2, {0}) == "no error");
}

TEST_CASE("a multiplier beyond float makes all of a simulated row NaN") {
  for (const std::int64_t n : {5, 300000}) {
    std::array<score_row, 2> rows{};
    run({.n = n, .head_dim = 4, .multipliers = {1e39, 1}, .count = 1}, rows.data());
    const score_row& row = rows[0];
    for (const double each : {row.entropy, row.lse, row.concentration, row.max_weight,
                              row.mean_score, row.score_variance, row.weighted_value})
      CHECK(std::isnan(each));
    CHECK(rows[1].entropy > 0);
    CHECK(rows[1].max_weight < 1);
  }
}

}  // namespace test_montecarlo_refusals
