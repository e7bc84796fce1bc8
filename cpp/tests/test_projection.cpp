// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "attnscale/montecarlo.hpp"
#include "attnscale/simd_level.hpp"
#include "experiments/variate_block.hpp"
#include "kernels/random/random.hpp"
#include "kernels/stop_signal.hpp"
#include "machine/dispatch.hpp"

namespace test_projection {

using attnscale::distribution;
using attnscale::power_sums;
using attnscale::projection_kind;
using attnscale::random_stream;
using attnscale::variate;
using namespace attnscale::detail;

namespace {

constexpr random_stream source{99, 3};

attnscale::execution threads(int n) {
  attnscale::execution how;
  how.num_threads = n;
  return how;
}

std::vector<float> normals(std::int64_t count) {
  std::vector<float> x(static_cast<std::size_t>(count));
  attnscale::fill(x.data(), count, {}, source);
  return x;
}

std::vector<double> samples_by_level(const std::string& level, const variate& x, std::int64_t dim) {
  const stop_signal never{[](const void*) noexcept { return false; }, nullptr};
  std::vector<double> out(7 * group_blocks);
  const auto type = attnscale::element_type::float32;
  kernels_for(level.c_str())
      .random.dots({source, variate_block_of(x, type), variate_block_of({}, type), 5, 7, dim,
                    out.data(), &never});
  return out;
}

std::vector<power_sums> sums(std::int64_t block, std::int64_t first, std::int64_t count, int n) {
  std::vector<power_sums> out(static_cast<std::size_t>((count + block - 1) / block));
  run({20, {}, {distribution::laplace, 0, 1}, block, source, first, count}, out.data(), threads(n));
  return out;
}

bool same(const power_sums& a, const power_sums& b) {
  return a.s == b.s && a.s2 == b.s2 && a.s3 == b.s3 && a.s4 == b.s4;
}

std::vector<float> projected(const std::vector<float>& x, std::int64_t points, std::int64_t columns,
                             projection_kind kind, int n_threads) {
  const auto dim = static_cast<std::int64_t>(x.size()) / points;
  std::vector<float> out(static_cast<std::size_t>(points * columns));
  attnscale::project(out.data(), columns, x.data(), points, dim,
                     {kind, kind == projection_kind::sparse ? 0.25 : 1.0 / 3, source},
                     threads(n_threads));
  return out;
}

}  // namespace

TEST_CASE("sums of products are the same bits at every level") {
  const auto levels = attnscale::available_simd_levels();
  for (const variate& x : std::vector<variate>{
           {}, {distribution::truncated_normal, 0, 1, -2, 2}, {distribution::uniform, -1, 1}})
    for (const std::int64_t dim : {1, 4, 5, 31, 32, 33, 100}) {
      const auto expected = samples_by_level(std::string(levels.front()), x, dim);
      for (const std::string_view level : levels)
        CHECK(samples_by_level(std::string(level), x, dim) == expected);
    }
}

TEST_CASE("sums over blocks do not depend on threads or on the split") {
  for (const std::int64_t block : {1, 10, 4096, 9000}) {
    const auto all = sums(block, 0, 4 * block, 1), again = sums(block, 0, 4 * block, 3);
    CHECK(std::equal(all.begin(), all.end(), again.begin(), same));
    const auto part = sums(block, 2 * block, 2 * block, 2);
    CHECK(std::equal(part.begin(), part.end(), all.begin() + 2, same));
  }
}

TEST_CASE("a projection is the product with its matrix, for any number of threads") {
  const std::int64_t dim = 530, points = 9, columns = 67;
  std::vector<float> unit(static_cast<std::size_t>(dim * dim));
  for (std::int64_t i = 0; i < dim; ++i) unit[static_cast<std::size_t>(i * dim + i)] = 1;
  const std::vector<float> x = normals(points * dim);
  for (const auto kind :
       {projection_kind::gaussian, projection_kind::sign, projection_kind::sparse}) {
    const auto matrix = projected(unit, dim, columns, kind, 3);
    const auto found = projected(x, points, columns, kind, 1);
    CHECK(projected(x, points, columns, kind, 3) == found);
    for (std::int64_t p = 0; p < points; ++p)
      for (std::int64_t k = 0; k < columns; ++k) {
        double sum = 0, size = 0;
        for (std::int64_t c = 0; c < dim; ++c) {
          const double term = static_cast<double>(x[static_cast<std::size_t>(p * dim + c)]) *
                              matrix[static_cast<std::size_t>(c * columns + k)];
          sum += term;
          size += std::abs(term);
        }
        CHECK(std::abs(found[static_cast<std::size_t>(p * columns + k)] - sum) < 1e-6 * size);
      }
  }
}

TEST_CASE("ratios of distances are those of all pairs") {
  for (const std::int64_t points : {2, 3, 16, 63, 64, 65, 150}) {
    const std::int64_t dim = 37, after_dim = 5;
    const auto x = normals(points * dim), y = normals(points * after_dim);
    double least = INFINITY, most = 0, sum = 0;
    std::int64_t outside = 0, pairs = 0;
    const auto distance = [](const std::vector<float>& all, std::int64_t d, std::int64_t i,
                             std::int64_t j) {
      double square = 0;
      for (std::int64_t c = 0; c < d; ++c) {
        const double step = static_cast<double>(all[static_cast<std::size_t>(i * d + c)]) -
                            all[static_cast<std::size_t>(j * d + c)];
        square += step * step;
      }
      return square;
    };
    for (std::int64_t i = 0; i < points; ++i)
      for (std::int64_t j = i + 1; j < points; ++j, ++pairs) {
        const double ratio = distance(y, after_dim, i, j) / distance(x, dim, i, j);
        least = std::min(least, ratio);
        most = std::max(most, ratio);
        sum += ratio;
        outside += std::abs(ratio - 1) > 0.9;
      }
    const auto found = attnscale::compare_distances(x.data(), dim, y.data(), after_dim, points,
                                                    {0.9, 1e9}, threads(3));
    CHECK(found.least == doctest::Approx(least).epsilon(1e-5));
    CHECK(found.most == doctest::Approx(most).epsilon(1e-5));
    CHECK(found.mean == doctest::Approx(sum / static_cast<double>(pairs)).epsilon(1e-5));
    CHECK(found.outside == std::vector<std::int64_t>{outside, 0});
  }
}

}  // namespace test_projection
