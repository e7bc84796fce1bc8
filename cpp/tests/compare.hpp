// SPDX-License-Identifier: BSD-3-Clause
//
// Random arrays, and the comparison of a call with the oracle under the error bounds of the
// documentation: eps is the type's, `score` the rounding error of the scores. compare.cpp compiles
// the comparison once, for float and for double.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attnscale/attention.hpp"
#include "oracle.hpp"

namespace testing {

using shape_type = std::vector<std::size_t>;

/// Normal numbers that depend only on the seed.
template <class T>
xt::xarray<T> normal(const shape_type& shape, unsigned seed, double sigma = 1) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> distribution(0, sigma);
  xt::xarray<T> result = xt::xarray<T>::from_shape(shape);
  for (T& x : result) x = static_cast<T>(distribution(engine));
  return result;
}

template <class T>
struct inputs {
  xt::xarray<T> query, key, value;
  inputs(std::size_t n_queries, std::size_t n_keys, std::size_t head_dim, std::size_t value_dim,
         double sigma = 1)
      : query(normal<T>({n_queries, head_dim}, 1, sigma)),
        key(normal<T>({n_keys, head_dim}, 2)),
        value(normal<T>({n_keys, value_dim}, 3)) {}

  double standard_scale() const {
    return 1 / std::sqrt(std::max<double>(1, static_cast<double>(query.shape(1))));
  }
  oracle::setting setting() const { return {query.shape(0), key.shape(0), standard_scale()}; }
};

/// True if both arrays hold the same bits.
template <class A>
bool identical(const A& a, const A& b) {
  if (a.shape() != b.shape()) return false;
  return a.size() == 0 || std::memcmp(a.data(), b.data(), a.size() * sizeof(*a.data())) == 0;
}

/// Largest |seen - wanted| / bound; infinite if a NaN or infinity is in the wrong place.
template <class Seen, class Wanted, class Bound>
double worst_ratio(const Seen& seen, const Wanted& wanted, const Bound& bound) {
  if (seen.size() != wanted.size()) return oracle::infinity;
  double worst = 0;
  auto w = wanted.begin();
  auto b = bound.begin();
  for (const double x : seen) {
    const double expected = *w++, allowed = *b++;
    if (x == expected) continue;  // also for infinities
    const double ratio = std::abs(x - expected) / allowed;
    worst = ratio <= worst ? worst : ratio == ratio ? ratio : oracle::infinity;
  }
  return worst;
}

/// Error bounds of the documentation.
template <class T>
struct bounds {
  static constexpr double eps = std::numeric_limits<T>::epsilon();
  static constexpr double tiny = std::numeric_limits<T>::min();
  static constexpr double sums = std::is_same_v<T, float> ? 2e-6 : 1e-12;
  oracle::column score, moved;  ///< error of a score, and its effect on a mean score

  explicit bounds(const oracle::expected& e);
  oracle::matrix output(const oracle::expected& e, double factor = 4) const;
  oracle::column entropy(const oracle::expected& e) const;
  oracle::column lse(const oracle::expected& e) const;
  oracle::column max_score(const oracle::expected& e) const;
  oracle::column min_score(const oracle::expected& e) const;
  oracle::column renyi2(const oracle::expected& e) const;
  oracle::column mean_score(const oracle::expected& e) const;
  oracle::column score_variance(const oracle::expected& e) const;
  oracle::column weight(const oracle::expected& e, const oracle::column& w) const;
};

template <class T>
void check_statistics(const attnscale::attention_statistics_result<T>& seen,
                      const oracle::expected& e);

/// Compares every statistic and the output with the oracle; the shorter calls have to give the same
/// bits.
template <class T>
void check_call(const inputs<T>& in, const attnscale::attention_options& options,
                const oracle::setting& setting);

extern template struct bounds<float>;
extern template struct bounds<double>;

/// Runs a check for float and for double.
template <class F>
void for_both_types(F f) {
  f(float{});
  f(double{});
}

/// Message of the std::invalid_argument that `call` throws.
template <class F>
std::string refusal(F call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

/// Whether call(rows, how), which runs alone, is interrupted: the calling thread polls every few
/// milliseconds, so rows are added until it does.
template <class F>
bool ends_when_interrupted(F call) {
  const attnscale::execution how{1, [](void*) { return true; }, nullptr};
  for (std::size_t rows = 30000; rows < 4000000; rows *= 2) {
    try {
      call(rows, how);
    } catch (const attnscale::interrupted&) {
      return true;
    }
  }
  return false;
}

}  // namespace testing
