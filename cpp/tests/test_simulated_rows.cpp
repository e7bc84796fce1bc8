// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "attnscale/montecarlo.hpp"
#include "attnscale/simd_level.hpp"
#include "kernels/random/random.hpp"
#include "kernels/stop_signal.hpp"
#include "machine/dispatch.hpp"
#include "machine/scratch.hpp"

namespace test_simulated_rows {

using attnscale::random_stream;
using attnscale::score_model;
using attnscale::score_row;
using attnscale::score_rows_problem;
using namespace attnscale::detail;

namespace {

constexpr random_stream source{42, 7};
const std::vector<double> multipliers = {0, 0.3, 1, 20, -2};

std::vector<score_row> simulated(score_rows_problem problem, int n_threads = 1) {
  problem.from = source;
  problem.multipliers = multipliers;
  std::vector<score_row> out(static_cast<std::size_t>(problem.count) * multipliers.size());
  attnscale::execution how;
  how.num_threads = n_threads;
  run(problem, out.data(), how);
  return out;
}

score_rows_problem problem_of(score_model model, std::int64_t n, std::int64_t count) {
  score_rows_problem problem;
  problem.model = model;
  problem.n = n;
  problem.head_dim = 16;
  if (model == attnscale::score_model::correlated) problem.correlation = 0.25;
  problem.count = count;
  return problem;
}

/// Whether rows are equal bit for bit, NaN included.
bool same(const score_row* a, const score_row* b, std::size_t n) {
  return std::memcmp(a, b, n * sizeof *a) == 0;
}

/// Sums of one row and its extremes, from the kernel of one level.
std::vector<double> by_level(const std::string& level, score_kind kind, std::int64_t keys) {
  const std::vector<float> factors = {0, 0.5F, 1.5F, 40, -3};
  const float needle = 1.25F;
  std::vector<simulated_sums> sums(factors.size());
  const aligned_buffer scratch(factors.size() * score_scratch);
  const stop_signal never{[](const void*) noexcept { return false; }, nullptr};
  simulated_row_block block{};
  block.source = {source, purpose::main};
  block.kind = kind;
  block.first_group = 100;
  block.value_group = 5;
  block.keys = keys;
  block.offset = 0.1;
  block.scale = 2.5;
  block.power = 0.2;
  block.needle = keys % 2 == 1 ? &needle : nullptr;
  block.factors = factors.data();
  block.n_factors = static_cast<std::int64_t>(factors.size());
  block.sums = sums.data();
  block.scratch = scratch.data();
  block.stop = &never;
  kernels_for(level.c_str()).random.simulate_row(block);
  std::vector<double> all = {static_cast<double>(block.least), static_cast<double>(block.most)};
  for (const simulated_sums& s : sums)
    all.insert(all.end(), {s.reference, s.weight, s.first, s.squares, s.value, s.score_first,
                           s.score_second, s.center});
  return all;
}

}  // namespace

TEST_CASE("simulated rows have the same sums at every level") {
  const auto levels = attnscale::available_simd_levels();
  for (const auto kind : {score_kind::normal, score_kind::sphere, score_kind::sign})
    for (const std::int64_t keys : {1, 2, 15, 16, 17, 33, 511, 512, 513, 1025, 5000}) {
      CAPTURE(keys);
      const auto expected = by_level(std::string(levels.front()), kind, keys);
      for (const std::string_view level : levels)
        CHECK(by_level(std::string(level), kind, keys) == expected);
    }
}

TEST_CASE("simulated rows are those of their scores") {
  for (const std::int64_t n : {1, 100, 513, 700}) {
    const auto rows = simulated(problem_of(score_model::gaussian, n, 3));
    const std::int64_t step = (n + 63) / 64 * 64;
    std::vector<float> s(static_cast<std::size_t>(3 * step));
    attnscale::fill(s.data(), 3 * step, {}, source);
    for (std::int64_t row = 0; row < 3; ++row)
      for (std::size_t m = 0; m < multipliers.size(); ++m) {
        double weight = 0, first = 0, squares = 0;
        for (std::int64_t j = 0; j < n; ++j) {
          const double t = multipliers[m] * s[static_cast<std::size_t>(row * step + j)];
          weight += std::exp(t);
          first += std::exp(t) * t;
          squares += std::exp(2 * t);
        }
        const score_row& found = rows[static_cast<std::size_t>(row) * multipliers.size() + m];
        CHECK(found.lse == doctest::Approx(std::log(weight)).epsilon(1e-5));
        CHECK(found.mean_score == doctest::Approx(first / weight).epsilon(1e-5));
        CHECK(found.concentration == doctest::Approx(squares / weight / weight).epsilon(1e-4));
        CHECK(std::abs(found.entropy - (std::log(weight) - first / weight)) < 1e-5);
      }
  }
}

TEST_CASE("simulated rows do not depend on threads or on the split of the rows") {
  for (const auto model : {score_model::sphere, score_model::gaussian, score_model::correlated})
    for (const std::int64_t n : {1, 300, 40000}) {
      score_rows_problem problem = problem_of(model, n, 16);
      problem.needle_cosine = 0.5;
      const auto all = simulated(problem);
      CHECK(same(simulated(problem, 3).data(), all.data(), all.size()));
      problem.first = 9;
      problem.count = 4;
      const auto part = simulated(problem, 2);
      CHECK(same(part.data(), all.data() + 9 * multipliers.size(), part.size()));
    }
}

TEST_CASE("a row that is split into ranges does not depend on threads") {
  const score_rows_problem problem = problem_of(score_model::sphere, 600001, 2);
  const auto one = simulated(problem, 1), three = simulated(problem, 3);
  CHECK(same(one.data(), three.data(), one.size()));
}

TEST_CASE("the largest cosine is that of the row with the same numbers") {
  std::vector<double> found(20);
  attnscale::max_cosine(found.data(), 20, 5, 2, source);
  for (const double cosine : found) {
    CHECK(cosine <= 1);
    CHECK(cosine > -1);
  }
  std::vector<double> one(1);
  attnscale::max_cosine(one.data(), 1, 5, 2, source, 13);
  CHECK(one[0] == found[13]);
}

}  // namespace test_simulated_rows
