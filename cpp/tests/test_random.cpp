// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "attnscale/montecarlo.hpp"
#include "attnscale/simd_level.hpp"
#include "experiments/variate_block.hpp"
#include "kernels/random/random.hpp"
#include "machine/dispatch.hpp"

namespace test_random {

using attnscale::distribution;
using attnscale::execution;
using attnscale::fill;
using attnscale::fill_sphere;
using attnscale::philox4x32_10;
using attnscale::random_stream;
using attnscale::variate;
using namespace attnscale::detail;

namespace {

using words = std::array<std::uint32_t, 4>;

constexpr random_stream source{0x123456789ABCDEF0, 0x0FEDCBA987654321};

const std::vector<variate> variates = {
    {distribution::uniform, -1, 2},
    {distribution::normal, 0.5, 3},
    {distribution::laplace, 1, 2},
    {distribution::truncated_normal, 0, 1, -2, 2},
    {distribution::truncated_normal, 1, 2, 5, 8},
    {distribution::truncated_normal, 0, 1, -38, -30},
};

execution threads(int n) {
  execution how;
  how.num_threads = n;
  return how;
}

template <class T>
std::vector<T> filled(std::int64_t count, const variate& what, std::int64_t first = 0,
                      int n_threads = 1) {
  std::vector<T> out(static_cast<std::size_t>(count));
  fill(out.data(), count, what, source, first, threads(n_threads));
  return out;
}

/// Word w of a block of the stream, by the scalar generator.
std::uint32_t word_of(std::uint64_t block, int w) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const words x =
      philox4x32_10({low(block), low(block >> 32), low(source.stream), low(source.stream >> 32)},
                    {low(source.key), low(source.key >> 32)});
  return x[static_cast<std::size_t>(w)];
}

template <class T>
std::vector<T> slice(const std::vector<T>& all, std::int64_t first, std::int64_t count) {
  return {all.begin() + first, all.begin() + first + count};
}

/// Groups from the kernel of one level.
template <class T>
std::vector<T> by_level(const std::string& level, const variate& what, std::uint64_t first_group) {
  constexpr bool wide = sizeof(T) == 8;
  std::vector<T> out(33 * group_elements<T>);
  const auto type = wide ? attnscale::element_type::float64 : attnscale::element_type::float32;
  const fill_block block{
      {source, purpose::values}, variate_block_of(what, type), first_group, 33, out.data()};
  const level_kernels& table = kernels_for(level.c_str());
  (wide ? table.float64 : table.float32).fill(block);
  return out;
}

template <class T>
void check_levels() {
  for (const variate& what : variates) {
    for (const std::uint64_t group : {std::uint64_t{0}, (std::uint64_t{1} << 28) - 3}) {
      const auto expected =
          by_level<T>(std::string(attnscale::available_simd_levels().front()), what, group);
      for (const std::string_view level : attnscale::available_simd_levels()) {
        CAPTURE(level);
        CAPTURE(static_cast<int>(what.kind));
        CHECK(by_level<T>(std::string(level), what, group) == expected);
      }
    }
  }
}

template <class T>
void check_split() {
  for (const variate& what : variates) {
    const std::int64_t n = 200000;
    const auto all = filled<T>(n, what, 0, 1);
    CHECK(filled<T>(n, what, 0, 3) == all);
    for (const std::int64_t first : {1, 15, 16, 31, 32, 63, 64, 65, 1000, 131071})
      for (const std::int64_t count : {0, 1, 17, 64, 100, 2000})
        CHECK(filled<T>(count, what, first) == slice(all, first, count));
  }
}

}  // namespace

TEST_CASE("philox gives the known answers of its authors") {
  constexpr std::uint32_t ones = 0xFFFFFFFF;
  CHECK(philox4x32_10({0, 0, 0, 0}, {0, 0}) ==
        words{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8});
  CHECK(philox4x32_10({ones, ones, ones, ones}, {ones, ones}) ==
        words{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD});
  CHECK(philox4x32_10({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0}) ==
        words{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1});
}

TEST_CASE("elements are the words of the documented blocks") {
  const variate unit{distribution::uniform, 0, 1};
  for (const std::int64_t first : {std::int64_t{0}, (std::int64_t{1} << 34) - 200}) {
    const auto narrow = filled<float>(400, unit, first);
    const auto wide = filled<double>(400, unit, first);
    for (std::int64_t k = 0; k < 400; ++k) {
      const auto i = static_cast<std::uint64_t>(first + k);
      const auto at = static_cast<std::size_t>(k);
      const std::uint32_t word = word_of(16 * (i / 64) + i % 16, static_cast<int>(i / 16 % 4));
      CHECK(narrow[at] == static_cast<float>(word >> 8) * 0x1p-24f);
      const std::uint64_t block = 16 * (i / 32) + i % 16;
      const int low = static_cast<int>(i / 16 % 2) * 2;
      const std::uint64_t both =
          word_of(block, low) | static_cast<std::uint64_t>(word_of(block, low + 1)) << 32;
      CHECK(wide[at] == static_cast<double>(both >> 11) * 0x1p-53);
    }
  }
}

TEST_CASE("every level gives the same bits") {
  check_levels<float>();
  check_levels<double>();
}

TEST_CASE("the same bits for any number of threads and any split") {
  check_split<float>();
  check_split<double>();
}

TEST_CASE("normals are those of Box and Muller") {
  const auto z = filled<double>(64, {distribution::normal, 0, 1});
  for (std::uint64_t i = 0; i < 16; ++i) {
    const auto bits = [&](int low) {
      return word_of(i, low) | static_cast<std::uint64_t>(word_of(i, low + 1)) << 32;
    };
    const double radius = std::hypot(z[i], z[i + 16]);
    const auto signed_bits = std::bit_cast<std::int64_t>(bits(0));
    const double x = (static_cast<double>(signed_bits) + 0.5) * 0x1p-64;
    const double u = x < 0 ? std::log1p(x) : std::log(x);
    CHECK(radius == doctest::Approx(std::sqrt(-2 * u)).epsilon(1e-15));
  }
}

TEST_CASE("a truncated normal stays in its interval and uses all of it") {
  for (const auto& [start, end] : std::vector<std::pair<double, double>>{
           {-2, 2}, {0, 1e-3}, {5, 8}, {-38, -30}, {-INFINITY, INFINITY}, {40, 41}}) {
    const double low = start, high = end;  // clang 14 captures no structured binding
    const auto x = filled<double>(4096, {distribution::truncated_normal, 0, 1, low, high});
    const auto [least, most] = std::minmax_element(x.begin(), x.end());
    CAPTURE(low);
    CHECK(*least >= low);
    CHECK(*most <= high);
    CHECK((*most > *least || low == 40));
  }
}

TEST_CASE("a uniform number never reaches the end of its interval") {
  // Steps of float32 at 1e6 are 1/16: without the bound, one in 32 numbers would round to the end.
  for (const float x : filled<float>(4096, {distribution::uniform, 1e6, 1e6 + 1}))
    CHECK(x < 1e6F + 1);
}

TEST_CASE("points of a sphere have its radius, and rows do not depend on the split") {
  for (const std::int64_t dim : {1, 2, 3, 17, 64, 100}) {
    std::vector<double> all(static_cast<std::size_t>(50 * dim)),
        part(static_cast<std::size_t>(7 * dim));
    fill_sphere(all.data(), 50, dim, 3, source);
    fill_sphere(part.data(), 7, dim, 3, source, 20, threads(3));
    CHECK(part == slice(all, 20 * dim, 7 * dim));
    for (std::int64_t row = 0; row < 50; ++row) {
      double square = 0;
      for (std::int64_t i = 0; i < dim; ++i) {
        const double x = all[static_cast<std::size_t>(row * dim + i)];
        square += x * x;
      }
      CHECK(square == doctest::Approx(9).epsilon(1e-14));
    }
  }
}

}  // namespace test_random
