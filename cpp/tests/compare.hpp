// SPDX-License-Identifier: BSD-3-Clause
//
// Random arrays, and the comparison of a call with the oracle under the error bounds that the
// package promises: eps is the type's, `score` what rounding the scores costs.
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

/// Normal numbers that depend on the seed alone.
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

/// Largest |seen - wanted| / bound; infinite where a NaN or infinity is in the wrong place.
template <class Seen, class Wanted, class Bound>
double worst_ratio(const Seen& seen, const Wanted& wanted, const Bound& bound) {
  if (seen.size() != wanted.size()) return oracle::infinity;
  double worst = 0;
  auto w = wanted.begin();
  auto b = bound.begin();
  for (const double x : seen) {
    const double expected = *w++, allowed = *b++;
    if (x == expected) continue;  // infinities too
    const double ratio = std::abs(x - expected) / allowed;
    worst = ratio <= worst ? worst : ratio == ratio ? ratio : oracle::infinity;
  }
  return worst;
}

/// Bounds of the errors that design and docs promise.
template <class T>
struct bounds {
  static constexpr double eps = std::numeric_limits<T>::epsilon();
  static constexpr double tiny = std::numeric_limits<T>::min();
  static constexpr double sums = std::is_same_v<T, float> ? 2e-6 : 1e-12;
  oracle::column score, moved;  ///< error of a score, and what it moves a mean score by

  explicit bounds(const oracle::expected& e)
      : score(2 * eps * (1 + e.magnitude)), moved(score * (1 + xt::sqrt(e.score_variance))) {}

  oracle::matrix output(const oracle::expected& e, double factor = 4) const {
    return (factor * eps + 2 * oracle::as_column(score)) * e.absolute_output + tiny;
  }
  oracle::column entropy(const oracle::expected& e) const {
    return sums + 2 * moved + eps * e.entropy;
  }
  oracle::column lse(const oracle::expected& e) const {
    return sums + score + eps * xt::abs(finite(e.lse));
  }
  oracle::column max_score(const oracle::expected& e) const {
    return score + 2 * eps * xt::abs(finite(e.max_score));
  }
  oracle::column mean_score(const oracle::expected& e) const {
    return sums + moved + eps * xt::abs(e.mean_score);
  }
  oracle::column score_variance(const oracle::expected& e) const {
    return sums + 4 * score * (1 + 4 * e.spread) + 16 * eps * e.spread;
  }
  /// The oracle's own plain sum over the keys counts too.
  oracle::column weight(const oracle::expected& e, const oracle::column& w) const {
    const double sum = std::sqrt(static_cast<double>(e.weights.shape(1)));
    return tiny + (8 * eps + sum * bounds<double>::eps + 4 * score) * w;
  }

  /// A row without keys has lse -inf, which has to be met exactly.
  static oracle::column finite(const oracle::column& x) { return xt::where(xt::isinf(x), 0.0, x); }
};

/// argmax may differ from the oracle's where the two keys' scores tie within rounding.
template <class T>
void check_argmax(const xt::xarray<std::int64_t>& seen, const oracle::expected& e,
                  const bounds<T>& bound) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen.flat(i) == e.argmax(i)) continue;
    const bool in_range =
        seen.flat(i) >= 0 && seen.flat(i) < static_cast<std::int64_t>(e.weights.shape(1));
    wrong += !in_range || e.argmax(i) < 0 ||
             e.weights(i, static_cast<std::size_t>(seen.flat(i))) <
                 e.max_weight(i) * std::exp(-2 * bound.score(i));
  }
  CHECK(wrong == 0);
}

template <class T>
void check_statistics(const attnscale::attention_statistics_result<T>& seen,
                      const oracle::expected& e) {
  const bounds<T> b(e);
  CHECK(worst_ratio(*seen.lse, e.lse, b.lse(e)) <= 1);
  CHECK(worst_ratio(*seen.entropy, e.entropy, b.entropy(e)) <= 1);
  CHECK(worst_ratio(*seen.max_score, e.max_score, b.max_score(e)) <= 1);
  CHECK(worst_ratio(*seen.mean_score, e.mean_score, b.mean_score(e)) <= 1);
  CHECK(worst_ratio(*seen.score_variance, e.score_variance, b.score_variance(e)) <= 1);
  CHECK(worst_ratio(*seen.concentration, e.concentration, b.weight(e, e.concentration)) <= 1);
  CHECK(worst_ratio(*seen.max_weight, e.max_weight, b.weight(e, e.max_weight)) <= 1);
  CHECK(xt::xarray<std::int64_t>(e.n_visible) == *seen.n_visible);
  check_argmax(*seen.argmax, e, b);
}

/// Every statistic and the output against the oracle; the shorter calls give the same bits.
template <class T>
void check_call(const inputs<T>& in, const attnscale::attention_options& options,
                const oracle::setting& setting) {
  CAPTURE(sizeof(T));
  CAPTURE(in.query.shape(0));
  CAPTURE(in.key.shape(0));
  CAPTURE(in.query.shape(1));
  CAPTURE(in.value.shape(1));
  const oracle::expected e = oracle::attention(in.query, in.key, in.value, setting);
  const auto seen = attnscale::attention_statistics(in.query, in.key, in.value, options,
                                                    attnscale::all_statistics);
  CHECK(worst_ratio(*seen.output, e.output, bounds<T>(e).output(e)) <= 1);
  check_statistics(seen, e);
  CHECK(identical(*seen.output, attnscale::attention(in.query, in.key, in.value, options)));
  CHECK(identical(*seen.entropy, attnscale::attention_entropy(in.query, in.key, options)));
}

/// Runs a check for float and for double.
template <class F>
void for_both_types(F f) {
  f(float{});
  f(double{});
}

/// The message of the std::invalid_argument that `call` throws.
template <class F>
std::string refusal(F call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace testing
