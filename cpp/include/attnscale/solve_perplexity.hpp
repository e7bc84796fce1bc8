// SPDX-License-Identifier: BSD-3-Clause
//
// The perplexity search of t-SNE: widths of Gaussians that give each point so many neighbours.
//
// -|x - y|^2 = 2 x . y - |x|^2 - |y|^2, and |x|^2 is the same for a whole row, so it drops out of
// the weights: the search is that of solve_scale with the query (2 x, -1) and the key (y, |y|^2).
// Points are centred, so that an offset of the data costs no digits, and multiplied by a power of
// two, as rows of distances are, so that the answer is the same in any unit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "attnscale/number_or_array.hpp"
#include "attnscale/solve_scale.hpp"
#include "attnscale/strided_array.hpp"

namespace attnscale {

/// How exactly each entropy is to be met, and by how many threads.
struct perplexity_options {
  double tolerance = 0;  ///< of an entropy, in nats; 0: 1e-9 for double, else 1e-6
  int num_threads = 0;   ///< 0: attnscale::num_threads()
};

/// Affinities of a wanted perplexity; arrays of one number a row but for the first.
struct perplexity_solution {
  dense_array<double> affinities;  ///< t-SNE's p of j given i; rows add up to 1
  /// 1 / (2 sigma^2); NaN where no width has the perplexity: it is more than the row has
  /// neighbours, or less than the number of its nearest ones that are equally near.
  dense_array<double> beta;
  dense_array<double> perplexity;  ///< that of the affinities: where not feasible, the nearest one
  dense_array<bool> feasible;      ///< whether a beta exists
  dense_array<bool> converged;     ///< within the tolerance, by a beta that double can hold
};

namespace detail {

/// The search for rows of numbers, and the weights that come out of it.
class perplexity_search {
 public:
  perplexity_search(std::size_t n_rows, std::size_t n_columns, std::vector<double> target,
                    const perplexity_options& options)
      : target_(std::move(target)), options_(options), n_columns_(n_columns) {
    const std::vector<std::size_t> rows{n_rows};
    found = {dense_array<double>::from_shape({n_rows, n_columns}),
             dense_array<double>::from_shape(rows), dense_array<double>::from_shape(rows),
             dense_array<bool>::from_shape(rows), dense_array<bool>::from_shape(rows)};
  }

  /// All rows from queries and keys. Row i does not see key i.
  void run_products(const dense_array<double>& query, const dense_array<double>& key) {
    const std::size_t n = target_.size();
    dense_array<bool> line = dense_array<bool>::from_shape({2 * n - 1});
    line.fill(true);
    line(n - 1) = false;
    const std::vector<std::size_t> shape{n, n};
    const auto others = xt::adapt(line.data() + n - 1, n * n, xt::no_ownership(), shape,
                                  std::vector<std::ptrdiff_t>{-1, 1});
    const dense_array<double> target = xt::adapt(target_, std::vector<std::size_t>{n});
    keep(0, n,
         solve_scale(query, key, target,
                     {.attn_mask = std::cref(others), .num_threads = options_.num_threads},
                     options_.tolerance));
    const std::size_t dim = query.shape(1);
    for (std::size_t i = 0; i < n; ++i) {
      double* const row = row_of(i);
      for (std::size_t j = 0; j < n; ++j) {
        row[j] = 0;
        for (std::size_t c = 0; c < dim; ++c) row[j] += query(i, c) * key(j, c);
      }
      weigh(i, static_cast<std::ptrdiff_t>(i));
    }
  }

  /// The row `first` + r from squared distances in row r, all of them or all but that of the point
  /// itself. One query of -1 a row and keys of one channel: distances are not rounded again.
  template <class T>
  void run_distances(std::size_t first, const dense_array<T>& squared, bool but_itself) {
    const std::size_t n = squared.shape(0);
    dense_array<T> query = dense_array<T>::from_shape({n, std::size_t{1}, std::size_t{1}});
    query.fill(T(-1));
    dense_array<T> key = dense_array<T>::from_shape({n, n_columns_, std::size_t{1}});
    std::copy_n(squared.data(), n * n_columns_, key.data());
    std::vector<int> exponent(n, 0);
    for (std::size_t r = 0; r < n; ++r) {
      T most = 0;
      for (std::size_t j = 0; j < n_columns_; ++j)
        if (!but_itself || j != first + r) most = std::max(most, key(r, j, 0));
      exponent[r] = most > 0 ? std::ilogb(most) : 0;
      for (std::size_t j = 0; j < n_columns_; ++j)
        key(r, j, 0) = std::ldexp(key(r, j, 0), -exponent[r]);
    }
    dense_array<bool> others = dense_array<bool>::from_shape({n, std::size_t{1}, n_columns_});
    others.fill(true);
    for (std::size_t r = 0; but_itself && r < n; ++r) others(r, 0, first + r) = false;
    dense_array<double> target = dense_array<double>::from_shape({n, std::size_t{1}});
    std::copy_n(target_.begin() + static_cast<std::ptrdiff_t>(first), n, target.begin());
    keep(first, n,
         solve_scale(query, key, target,
                     {.attn_mask = std::cref(others), .num_threads = options_.num_threads},
                     options_.tolerance));
    for (std::size_t r = 0; r < n; ++r) {
      double* const row = row_of(first + r);
      for (std::size_t j = 0; j < n_columns_; ++j) row[j] = -static_cast<double>(key(r, j, 0));
      weigh(first + r, but_itself ? static_cast<std::ptrdiff_t>(first + r) : -1);
      put_in_units(first + r, exponent[r]);
    }
  }

  /// Of distances that were divided by a power of two.
  void put_in_units(std::size_t row, int exponent) {
    double& beta = found.beta(row);
    if (!(beta > 0) || std::isinf(beta)) return;
    beta = std::ldexp(beta, -exponent);
    if (!std::isnormal(beta)) found.converged(row) = false;
  }

  /// NaN for the beta of rows that have none.
  perplexity_solution answer() {
    for (std::size_t i = 0; i < target_.size(); ++i)
      if (!found.feasible(i)) found.beta(i) = std::numeric_limits<double>::quiet_NaN();
    return std::move(found);
  }

  perplexity_solution found;

 private:
  double* row_of(std::size_t i) { return found.affinities.data() + i * n_columns_; }

  template <class T>
  void keep(std::size_t first, std::size_t n, const scale_solution<T>& solved) {
    for (std::size_t r = 0; r < n; ++r) {
      found.beta(first + r) = solved.scale.flat(r);
      found.perplexity(first + r) = std::exp(static_cast<double>(solved.entropy.flat(r)));
      found.feasible(first + r) = solved.feasible.flat(r);
      found.converged(first + r) = solved.converged.flat(r);
    }
  }

  /// Softmax of beta times the scores of a row, in place. Infinite beta leaves the largest scores.
  void weigh(std::size_t i, std::ptrdiff_t hidden) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    double* const row = row_of(i);
    const double beta = found.beta(i);
    double top = -infinity, total = 0;
    for (std::size_t j = 0; j < n_columns_; ++j)
      if (static_cast<std::ptrdiff_t>(j) != hidden) top = std::max(top, row[j]);
    for (std::size_t j = 0; j < n_columns_; ++j) {
      const double below = row[j] - top;
      row[j] = static_cast<std::ptrdiff_t>(j) == hidden ? 0
               : std::isinf(beta)                       ? (below < 0 ? 0 : 1)
                                                        : std::exp(beta * below);
      total += row[j];
    }
    for (std::size_t j = 0; j < n_columns_; ++j) row[j] /= total > 0 ? total : 1;
  }

  std::vector<double> target_;  // ln(perplexity)
  perplexity_options options_;
  std::size_t n_columns_;
};

/// Refuses what is no table of at least two rows of finite numbers.
template <class A>
void check_points(const A& points, const char* form) {
  const extents shape(points.shape().begin(), points.shape().end());
  if (shape.size() != 2 || shape[0] < 2 || shape[1] < 1)
    refuse("points must be " + std::string(form) + " of at least two points, got shape " +
           text_of(shape));
  for (const auto each : points)
    if (!std::isfinite(each)) refuse("points must be finite, got NaN or infinity");
}

/// ln(perplexity) of each row.
inline std::vector<double> read_perplexity(const number_or_array<double>& perplexity,
                                           std::int64_t n) {
  if (!perplexity) refuse("perplexity must be a number or an array, got none");
  const strided_array given(perplexity.values(), 0);
  check_broadcast("perplexity", given, {n}, "(n,)");
  std::vector<double> target;
  for_each_index({n}, [&](const extents& index) {
    const double wanted = *static_cast<const double*>(given.at(index, {n}));
    if (!(wanted >= 1) || std::isinf(wanted))
      refuse("perplexity must be finite and at least 1, got " + text_of(wanted));
    target.push_back(std::log(wanted));
  });
  return target;
}

/// Searches again, with distances from differences, the rows whose entropy rounding of |x|^2 could
/// move by more than 1e-7: points far from the mean with near neighbours, and neighbours that tie.
inline void search_again(perplexity_search& search, const dense_array<double>& points,
                         double largest_norm) {
  const std::size_t n = points.shape(0);
  const double each = 4 * std::numeric_limits<double>::epsilon() * largest_norm;
  for (std::size_t i = 0; i < n; ++i) {
    if (search.found.beta(i) * each <= 1e-7) continue;
    dense_array<double> squared = dense_array<double>::from_shape({std::size_t{1}, n});
    for (std::size_t j = 0; j < n; ++j) {
      squared(0, j) = 0;
      for (std::size_t c = 0; c < points.shape(1); ++c) {
        const double difference = points(i, c) - points(j, c);
        squared(0, j) += difference * difference;
      }
    }
    search.run_distances(i, squared, true);
  }
}

}  // namespace detail

/// Conditional affinities of t-SNE, (n, n) with a zero diagonal, from points (n, n_features): each
/// row has this perplexity, one number or one a row, the exponential of its entropy.
template <float_array A>
perplexity_solution solve_perplexity(const A& points,
                                     const number_or_array<double>& perplexity = 30.0,
                                     const perplexity_options& options = {}) {
  detail::check_points(points, "an array (n, n_features)");
  const std::size_t n = points.shape()[0], dim = points.shape()[1];
  dense_array<double> exact = xt::cast<double>(points);
  double most = 0;
  for (const double each : exact) most = std::max(most, std::abs(each));
  const int exponent = most > 0 ? std::ilogb(most) + 1 : 0;
  for (double& each : exact) each = std::ldexp(each, -exponent);
  dense_array<double> query = dense_array<double>::from_shape({n, dim + 1}), key = query;
  double largest = 0;
  for (std::size_t c = 0; c < dim; ++c) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += exact(i, c);
    for (std::size_t i = 0; i < n; ++i) key(i, c) = exact(i, c) - sum / static_cast<double>(n);
  }
  for (std::size_t i = 0; i < n; ++i) {
    double norm = 0;
    for (std::size_t c = 0; c < dim; ++c) {
      query(i, c) = 2 * key(i, c);
      norm += key(i, c) * key(i, c);
    }
    query(i, dim) = -1;
    key(i, dim) = norm;
    largest = std::max(largest, norm);
  }
  detail::perplexity_search search(
      n, n, detail::read_perplexity(perplexity, static_cast<std::int64_t>(n)), options);
  search.run_products(query, key);
  detail::search_again(search, exact, largest);
  for (std::size_t i = 0; i < n; ++i) search.put_in_units(i, 2 * exponent);
  return search.answer();
}

/// The same from squared distances: (n, n), whose diagonal is left out, or (n, k) from each point
/// to k others, whose affinities are (n, k).
template <float_array A>
perplexity_solution solve_perplexity_of_distances(const A& squared,
                                                  const number_or_array<double>& perplexity = 30.0,
                                                  const perplexity_options& options = {}) {
  using T = typename A::value_type;
  detail::check_points(squared, "squared distances (n, n) or (n, k)");
  const std::size_t n = squared.shape()[0], columns = squared.shape()[1];
  if (columns > n)
    detail::refuse(
        "points must be squared distances (n, n) or (n, k), of at most n columns, got "
        "shape (" +
        detail::text_of(n) + ", " + detail::text_of(columns) + ")");
  T least = 0;
  for (const T each : squared) least = std::min(least, each);
  if (least < 0)
    detail::refuse("squared distances must be at least 0, got " + detail::text_of(least));
  detail::perplexity_search search(
      n, columns, detail::read_perplexity(perplexity, static_cast<std::int64_t>(n)), options);
  search.run_distances(0, dense_array<T>(squared), n == columns);
  return search.answer();
}

}  // namespace attnscale
