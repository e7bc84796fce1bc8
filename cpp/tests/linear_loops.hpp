// SPDX-License-Identifier: BSD-3-Clause
//
// Linear-time attention as plain loops in double over one head: the weight of each key, then the
// sum of the values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "compare.hpp"

namespace loops {

using matrix = xt::xtensor<double, 2, xt::layout_type::row_major>;

/// Offset for which query i sees all keys; in general it sees keys 0 ... i + offset.
inline constexpr std::int64_t everything = 1 << 20;

inline std::size_t seen(std::size_t i, std::int64_t offset, std::size_t n_keys) {
  const std::int64_t end = static_cast<std::int64_t>(i) + offset + 1;
  return static_cast<std::size_t>(
      std::clamp<std::int64_t>(end, 0, static_cast<std::int64_t>(n_keys)));
}

/// Sum of weight(i, j, n) times the values, over the n keys that query i sees.
template <class Weight>
matrix weighted(std::size_t n_queries, const matrix& value, std::int64_t offset, bool divided,
                Weight weight) {
  matrix output = xt::zeros<double>({n_queries, value.shape(1)});
  for (std::size_t i = 0; i < n_queries; ++i) {
    const std::size_t n = seen(i, offset, value.shape(0));
    double sum = 0;
    for (std::size_t j = 0; j < n; ++j) {
      const double w = weight(i, j, n);
      sum += w;
      for (std::size_t c = 0; c < value.shape(1); ++c) output(i, c) += w * value(j, c);
    }
    for (std::size_t c = 0; c < value.shape(1) && divided && sum != 0; ++c) output(i, c) /= sum;
  }
  return output;
}

/// phi(q_i) . phi(k_j), for features that are functions of single elements.
template <class Phi>
double product(const matrix& query, const matrix& key, std::size_t i, std::size_t j, Phi phi) {
  double sum = 0;
  for (std::size_t c = 0; c < query.shape(1); ++c) sum += phi(query(i, c)) * phi(key(j, c));
  return sum;
}

inline double elu(double x) { return x > 0 ? x + 1 : std::exp(x); }
inline double relu(double x) { return std::max(x, 0.0); }

inline matrix efficient(const matrix& query, const matrix& key, const matrix& value,
                        std::int64_t offset, double scale = 1) {
  return weighted(query.shape(0), value, offset, false,
                  [&](std::size_t i, std::size_t j, std::size_t n) {
                    double channels = 0, sum = 0;
                    for (std::size_t c = 0; c < query.shape(1); ++c) {
                      double keys = 0;
                      for (std::size_t other = 0; other < n; ++other)
                        keys += std::exp(scale * key(other, c));
                      const double of_query = std::exp(scale * query(i, c));
                      channels += of_query;
                      sum += of_query * std::exp(scale * key(j, c)) / keys;
                    }
                    return sum / channels;
                  });
}

inline matrix scaling(const matrix& query, const matrix& key, const matrix& value,
                      std::int64_t offset, double scale = 1) {
  return weighted(
      query.shape(0), value, offset, false, [&](std::size_t i, std::size_t j, std::size_t n) {
        return scale * scale * product(query, key, i, j, [](double x) { return x; }) / double(n);
      });
}

template <class Phi>
matrix linear(const matrix& query, const matrix& key, const matrix& value, std::int64_t offset,
              Phi phi) {
  return weighted(
      query.shape(0), value, offset, true,
      [&](std::size_t i, std::size_t j, std::size_t) { return product(query, key, i, j, phi); });
}

/// cosformer attention; `first`: position of the first query.
inline matrix cosformer(const matrix& query, const matrix& key, const matrix& value,
                        std::int64_t offset, double max_length, std::int64_t first = 0) {
  return weighted(query.shape(0), value, offset, true,
                  [&](std::size_t i, std::size_t j, std::size_t) {
                    const double distance = double(i) + double(first) - double(j);
                    return product(query, key, i, j, relu) *
                           std::cos(std::acos(-1.0) * distance / (2 * max_length));
                  });
}

/// Performer attention; directions: (features, head_dim).
inline matrix performer(const matrix& query, const matrix& key, const matrix& value,
                        std::int64_t offset, const matrix& directions, double scale) {
  const auto feature = [&](const matrix& rows, std::size_t i, std::size_t f) {
    double exponent = 0;
    for (std::size_t c = 0; c < rows.shape(1); ++c)
      exponent +=
          std::sqrt(scale) * directions(f, c) * rows(i, c) - scale * rows(i, c) * rows(i, c) / 2;
    return std::exp(exponent);
  };
  return weighted(query.shape(0), value, offset, true,
                  [&](std::size_t i, std::size_t j, std::size_t) {
                    double sum = 0;
                    for (std::size_t f = 0; f < directions.shape(0); ++f)
                      sum += feature(query, i, f) * feature(key, j, f);
                    return sum;
                  });
}

inline matrix ssd(const matrix& query, const matrix& key, const matrix& value,
                  const std::vector<double>& decay) {
  return weighted(query.shape(0), value, 0, false, [&](std::size_t i, std::size_t j, std::size_t) {
    double left = 0;
    for (std::size_t at = j + 1; at <= i; ++at) left += decay[at];
    return std::exp(left) * product(query, key, i, j, [](double x) { return x; });
  });
}

/// Largest difference, relative to 1 and the numbers themselves.
template <class Seen, class Wanted>
double difference(const Seen& seen, const Wanted& wanted) {
  if (seen.size() != wanted.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  auto w = wanted.begin();
  for (const double x : seen) {
    const double apart = std::abs(x - *w) / (1 + std::abs(*w));
    worst = apart <= worst ? worst : apart == apart ? apart : oracle::infinity;
    ++w;
  }
  return worst;
}

}  // namespace loops
