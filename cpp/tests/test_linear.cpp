// SPDX-License-Identifier: BSD-3-Clause
//
// Linear attention against its definition: sums of all pairs, in double.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "attnscale/detail/linear_problem.hpp"
#include "compare.hpp"

namespace test_linear {

using attnscale::execution;
using attnscale::matrix_layout;
using attnscale::detail::feature_map;
using attnscale::detail::linear_norm;
using attnscale::detail::linear_problem;
using namespace testing;

namespace {

template <class T>
constexpr attnscale::element_type type_of = sizeof(T) == 4 ? attnscale::element_type::float32
                                                           : attnscale::element_type::float64;

std::ptrdiff_t signed_size(std::size_t n) { return static_cast<std::ptrdiff_t>(n); }

/// One head on its own arrays.
template <class T>
struct linear_case {
  std::size_t n_queries, n_keys, dim, value_dim;
  xt::xarray<T> query, key, value, out;
  std::vector<double> query_turn, key_turn, projection, decay;
  linear_problem problem{};

  linear_case(std::size_t rows, std::size_t keys, std::size_t d, std::size_t dv,
              feature_map map = feature_map::elu)
      : n_queries(rows),
        n_keys(keys),
        dim(d),
        value_dim(dv),
        query(normal<T>({rows, d}, 1)),
        key(normal<T>({keys, d}, 2)),
        value(normal<T>({keys, dv}, 3)),
        out(xt::zeros<T>({rows, dv})) {
    if (map == feature_map::given) query = xt::abs(query), key = xt::abs(key);
    problem.form.map = map;
    problem.form.scale = 1;
    problem.form.head_dim = signed_size(d);
    problem.form.value_dim = signed_size(dv);
    problem.form.features = signed_size(map == feature_map::turned ? 2 * d : d);
    if (map == feature_map::turned) turn(query_turn, rows), turn(key_turn, keys);
    if (map == feature_map::projected) project(5);
    problem.n_queries = signed_size(rows);
    problem.n_keys = signed_size(keys);
  }

  static void turn(std::vector<double>& angles, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
      for (const double x : {std::cos(0.001 * double(i)), std::sin(0.001 * double(i))})
        angles.push_back(x);
  }

  void project(std::size_t features) {
    const auto w = normal<double>({dim, features}, 4);
    projection.assign(w.begin(), w.end());
    problem.form.features = signed_size(features);
    problem.form.norm_factor = 0.3;
    problem.form.shift = 0.1;
  }

  void see(std::int64_t offset) {
    problem.is_causal = true;
    problem.offset = offset;
  }

  void run(int threads = 1) { run(execution{threads}); }

  void run(const execution& how) {
    problem.form.projection = projection.data();
    if (!query_turn.empty()) problem.query_turn = query_turn.data();
    if (!key_turn.empty()) problem.key_turn = key_turn.data();
    const auto layout = [](std::size_t columns) {
      return matrix_layout{type_of<T>, signed_size(columns), 1};
    };
    problem.query = problem.key = layout(dim);
    problem.value = problem.output = layout(value_dim);
    const double* const decays = decay.empty() ? nullptr : decay.data();
    problem.heads = {{{query.data(), key.data(), value.data(), decays}, out.data(), {}}};
    attnscale::detail::run(problem, how);
  }

  // ---- the definition --------------------------------------------------------------------------

  double product(std::size_t i, std::size_t j) const {
    double sum = 0, norms = 0;
    for (std::size_t f = 0; f < dim; ++f) {
      const double q = query(i, f), k = key(j, f);
      const auto elu = [](double x) { return x > 0 ? x + 1 : std::exp(x); };
      const auto relu = [](double x) { return x > 0 ? x : 0; };
      norms += q * q + k * k;
      switch (problem.form.map) {
        case feature_map::elu:
        case feature_map::log_elu:
          sum += elu(q) * elu(k);
          break;
        case feature_map::relu:
          sum += relu(q) * relu(k);
          break;
        case feature_map::turned:
          sum += relu(q) * relu(k) * std::cos(0.001 * (double(i) - double(j)));
          break;
        case feature_map::exponential:
          sum += std::exp(q + k);
          break;
        default:
          sum += q * k;
      }
    }
    if (problem.form.map != feature_map::projected) return sum;
    sum = 0;
    const auto features = static_cast<std::size_t>(problem.form.features);
    for (std::size_t f = 0; f < features; ++f) {
      double log = -0.3 * norms - 0.2;
      for (std::size_t c = 0; c < dim; ++c)
        log += projection[c * features + f] * (double(query(i, c)) + double(key(j, c)));
      sum += std::exp(log);
    }
    return sum;
  }

  bool sees(std::size_t i, std::size_t j) const {
    return !problem.is_causal || signed_size(j) <= signed_size(i) + problem.offset;
  }

  void check(double tolerance = 64 * bounds<T>::eps) const {
    for (std::size_t i = 0; i < n_queries; ++i) {
      std::vector<double> sums(value_dim, 0), sizes(value_dim, 0);
      double total = 0, count = 0, left = 0;
      for (std::size_t j = n_keys; j-- > 0;) {
        if (j < i && !decay.empty()) left += decay[j + 1];
        if (!sees(i, j)) continue;
        const double weight = std::exp(left) * product(i, j);
        total += weight, ++count;
        for (std::size_t c = 0; c < value_dim; ++c) {
          sums[c] += weight * double(value(j, c));
          sizes[c] += std::abs(weight * double(value(j, c)));
        }
      }
      const linear_norm norm = problem.form.norm;
      const double by = norm == linear_norm::count ? count : norm == linear_norm::none ? 1 : total;
      for (std::size_t c = 0; c < value_dim; ++c)
        CHECK(std::abs(double(out(i, c)) - (by > 0 ? sums[c] / by : 0)) <=
              tolerance * (by > 0 ? sizes[c] / by : 0));
    }
  }
};

constexpr feature_map maps[] = {
    feature_map::given,       feature_map::elu,     feature_map::relu,     feature_map::turned,
    feature_map::exponential, feature_map::log_elu, feature_map::projected};

}  // namespace

TEST_CASE("linear: every map, for sizes around lanes and blocks, and every alignment") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const feature_map map : maps)
      for (const std::size_t rows : {1, 2, 63, 64, 65, 130})
        for (const std::size_t width : {1, 5, 16, 33}) {
          if (rows != 65 && width != 5) continue;  // edges of blocks, and edges of lanes
          CAPTURE(static_cast<int>(map));
          CAPTURE(rows);
          CAPTURE(width);
          linear_case<T> all(rows, 77, width, 34 - width, map);
          all.run();
          all.check();
          for (const std::int64_t offset : {0, 20, -30}) {
            CAPTURE(offset);
            linear_case<T> causal(rows, 77, width, 34 - width, map);
            causal.see(offset);
            causal.run();
            causal.check();
          }
        }
  });
}

TEST_CASE("linear: divided by the number of keys") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const bool causal : {false, true}) {
      linear_case<T> one(90, 100, 7, 9, feature_map::given);
      one.problem.form.norm = linear_norm::count;
      if (causal) one.see(0);
      one.run();
      one.check();
    }
  });
}

TEST_CASE("linear: sums that fade") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const std::size_t rows : {1, 63, 64, 65, 1100})
      for (const double size : {0.0, 0.1, 10.0, 1000.0}) {
        // The oracle computes every pair of rows: many rows only with one noticeable decay.
        if (rows > 1000 && size != 0.1) continue;
        CAPTURE(rows);
        CAPTURE(size);
        linear_case<T> one(rows, rows, 5, 9, feature_map::given);
        one.problem.form.norm = linear_norm::none;
        for (std::size_t i = 0; i < rows; ++i) one.decay.push_back(-size * double(i % 7) / 7);
        one.see(0);
        one.run(1);
        one.check(64 * (1 + size) * bounds<T>::eps);  // sums of log-decays are rounded
        const auto alone = one.out;
        one.run(3);
        CHECK(identical(one.out, alone));
      }
  });
}

TEST_CASE("linear: the same bits for any number of threads") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const feature_map map : {feature_map::elu, feature_map::exponential})
      for (const bool causal : {false, true}) {
        linear_case<T> one(5000, 5300, 5, 3, map);
        if (causal) one.see(100);
        one.run(1);
        const auto alone = one.out;
        for (const int threads : {2, 3, 7}) {
          one.out.fill(T(0));
          one.run(threads);
          CHECK(identical(one.out, alone));
        }
      }
  });
}

TEST_CASE("linear: keys that rise from row to row keep what earlier queries read") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const double step : {0.05, 1.0, 30.0}) {
      CAPTURE(step);
      linear_case<T> one(150, 150, 3, 4, feature_map::exponential);
      for (std::size_t i = 0; i < 150; ++i)
        for (std::size_t c = 0; c < 3; ++c) one.key(i, c) += static_cast<T>(step * double(i % 20));
      one.see(0);
      one.run();
      one.check(256 * 600 * bounds<T>::eps);  // logarithms up to 570 are rounded
    }
  });
}

TEST_CASE("linear: what is not finite reaches the rows that see it and no others") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const feature_map map : maps)
      for (const T bad :
           {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()}) {
        CAPTURE(static_cast<int>(map));
        linear_case<T> clean(130, 130, 5, 6, map), one(130, 130, 5, 6, map);
        clean.see(0), one.see(0);
        one.value(75, 2) = bad;
        clean.run(), one.run();
        for (std::size_t i = 0; i < 130; ++i)
          for (std::size_t c = 0; c < 6; ++c) {
            if (i >= 75 && c == 2)
              CHECK((!std::isfinite(one.out(i, c)) || map == feature_map::relu ||
                     map == feature_map::turned));
            else
              CHECK(std::abs(one.out(i, c) - clean.out(i, c)) <= 64 * bounds<T>::eps);
          }
      }
  });
}

TEST_CASE("linear: float32 products that vanish or overflow are taken in double") {
  for (const float size : {1e-30F, 1e25F})
    for (const bool causal : {false, true}) {
      CAPTURE(size);
      linear_case<float> one(70, 70, 5, 6, feature_map::given);
      one.query *= size;
      one.key *= size;
      if (causal) one.see(0);
      one.run();
      one.check(4 * bounds<float>::eps);
    }
}

TEST_CASE("linear: an interrupt ends the call") {
  CHECK(ends_when_interrupted([](std::size_t rows, const execution& how) {
    linear_case<float> one(rows, rows, 8, 8);
    one.see(0);
    one.run(how);
  }));
}

}  // namespace test_linear
