// SPDX-License-Identifier: BSD-3-Clause
//
// Search for perplexities. -|x - y|^2 = 2 x . y - |x|^2 - |y|^2, and |x|^2 is constant in a row, so
// it drops out of the weights: the search is that of solve_scale with the query (2 x, -1) and the
// key (y, |y|^2). Points are centred, so that an offset of the data costs no digits, and multiplied
// by a power of two, as are rows of distances, so that the answer is the same in any unit.
#include "attnscale/solve_perplexity.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "attnscale/detail/call_arrays.hpp"
#include "attnscale/detail/refuse.hpp"

namespace attnscale {
namespace {

using detail::refuse;
using detail::text_of;

/// A new matrix, row-major, or one per head.
template <class T>
row_array<T> matrices(std::initializer_list<std::size_t> shape) {
  row_array<T> made{{shape.begin(), shape.end()}, {}};
  made.numbers.resize(static_cast<std::size_t>(detail::entries_of(made.extents)));
  return made;
}

/// Numbers of a matrix of any strides.
template <class T>
std::vector<T> numbers_of(const strided_array& given) {
  const strided_array each = given.with_inner(0);
  std::vector<T> numbers;
  for_each_index(each.shape(), [&](const extents& index) {
    numbers.push_back(
        static_cast<T>(detail::number_at(each.at(index, each.shape()), each.layout().type, 0)));
  });
  return numbers;
}

/// ln(perplexity) of each row.
std::vector<double> read_perplexity(const number_or_array<double>& perplexity, std::int64_t n) {
  if (!perplexity) refuse("perplexity must be a number or an array, got none");
  const strided_array given(perplexity.rows(), 0);
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

/// The search for rows of numbers, and the resulting weights.
class perplexity_search {
 public:
  perplexity_search(std::size_t n_columns, std::vector<double> target,
                    const perplexity_options& options, const perplexity_places& into)
      : n_columns_(n_columns), target_(std::move(target)), options_(options), into_(into) {}

  /// All rows, from queries and keys. Row i does not see key i.
  void run_products(const row_array<double>& query, const row_array<double>& key) {
    const std::size_t n = target_.size(), dim = static_cast<std::size_t>(query.extents[1]);
    const auto line = std::make_unique<bool[]>(2 * n - 1);
    std::fill_n(line.get(), 2 * n - 1, true);
    line[n - 1] = false;
    call_arrays call{.compute = element_type::float64, .query = {query, 2}, .key = {key, 2}};
    const auto rows = static_cast<std::int64_t>(n);
    call.attn_mask = {line.get() + n - 1, element_type::float32, 1, {rows, rows}, {-1, 1}, 2};
    search<double>(call, 0, n);
    for (std::size_t i = 0; i < n; ++i) {
      double* const row = row_of(i);
      for (std::size_t j = 0; j < n; ++j) {
        row[j] = 0;
        for (std::size_t c = 0; c < dim; ++c)
          row[j] += query.numbers[i * dim + c] * key.numbers[j * dim + c];
      }
      weigh(i, static_cast<std::ptrdiff_t>(i));
    }
  }

  /// Row `first` + r from squared distances in row r, all of them or all but the point's own. One
  /// query of -1 per row and keys of one channel: distances are not rounded again.
  template <class T>
  void run_distances(std::size_t first, const std::vector<T>& squared, bool but_itself) {
    const std::size_t n = squared.size() / n_columns_;
    auto query = matrices<T>({n, 1, 1}), key = matrices<T>({n, n_columns_, 1});
    std::fill(query.numbers.begin(), query.numbers.end(), T(-1));
    key.numbers = squared;
    std::vector<int> exponent(n, 0);
    const auto others = std::make_unique<bool[]>(n * n_columns_);
    for (std::size_t r = 0; r < n; ++r) {
      T* const row = key.numbers.data() + r * n_columns_;
      T most = 0;
      for (std::size_t j = 0; j < n_columns_; ++j) {
        others[r * n_columns_ + j] = !but_itself || j != first + r;
        if (others[r * n_columns_ + j]) most = std::max(most, row[j]);
      }
      exponent[r] = most > 0 ? std::ilogb(most) : 0;
      for (std::size_t j = 0; j < n_columns_; ++j) row[j] = std::ldexp(row[j], -exponent[r]);
    }
    const auto heads = static_cast<std::int64_t>(n), keys = static_cast<std::int64_t>(n_columns_);
    call_arrays call{.compute = detail::element_type_of<T>,
                     .leading = {heads},
                     .query = {query, 2},
                     .key = {key, 2}};
    call.attn_mask = {others.get(), element_type::float32, 1, {heads, 1, keys}, {keys, keys, 1}, 2};
    search<T>(call, first, n);
    for (std::size_t r = 0; r < n; ++r) {
      double* const row = row_of(first + r);
      for (std::size_t j = 0; j < n_columns_; ++j)
        row[j] = -static_cast<double>(key.numbers[r * n_columns_ + j]);
      weigh(first + r, but_itself ? static_cast<std::ptrdiff_t>(first + r) : -1);
      put_in_units(first + r, exponent[r]);
    }
  }

  /// Undoes the division of distances by a power of two.
  void put_in_units(std::size_t row, int exponent) const {
    double& beta = into_.beta[row];
    if (!(beta > 0) || std::isinf(beta)) return;
    beta = std::ldexp(beta, -exponent);
    if (!std::isnormal(beta)) into_.converged[row] = false;
  }

 private:
  double* row_of(std::size_t i) const { return into_.affinities + i * n_columns_; }

  /// Scales (betas) of `n` rows from `first` on.
  template <class T>
  void search(call_arrays& call, std::size_t first, std::size_t n) const {
    const auto heads = static_cast<std::int64_t>(n);
    call.mask_type = mask_kind::boolean;
    call.scale = {target_.data() + first, element_type::float64, sizeof(double), {heads}, {1}, 0};
    std::vector<T> entropy(n), lowest(n), highest(n);
    std::vector<std::int64_t> iterations(n);
    solve_problem problem;
    if (call.leading.empty()) call.scale = call.scale.with_inner(1);
    call.fill(problem);
    problem.tolerance = options_.tolerance;
    if (problem.tolerance == 0) problem.tolerance = sizeof(T) == sizeof(double) ? 1e-9 : 1e-6;
    problem.scale = into_.beta + first;
    problem.entropy = entropy.data();
    problem.lowest = lowest.data();
    problem.highest = highest.data();
    problem.converged = into_.converged + first;
    problem.feasible = into_.feasible + first;
    problem.iterations = iterations.data();
    run(problem, {.num_threads = options_.num_threads});
    for (std::size_t r = 0; r < n; ++r)
      into_.perplexity[first + r] = std::exp(static_cast<double>(entropy[r]));
  }

  /// Softmax of beta times the scores of a row, in place. Infinite beta keeps only the largest
  /// scores.
  void weigh(std::size_t i, std::ptrdiff_t hidden) const {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    double* const row = row_of(i);
    const double beta = into_.beta[i];
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

  std::size_t n_columns_;
  std::vector<double> target_;  // ln(perplexity)
  perplexity_options options_;
  perplexity_places into_;
};

/// Searches again, with distances from differences, the rows whose entropy the rounding of |x|^2
/// could change by more than 1e-7: points far from the mean with near neighbours, and tied
/// neighbours.
void search_again(perplexity_search& search, const std::vector<double>& points, std::size_t n,
                  double largest_norm, const double* beta) {
  const std::size_t dim = points.size() / n;
  const double each = 4 * std::numeric_limits<double>::epsilon() * largest_norm;
  for (std::size_t i = 0; i < n; ++i) {
    if (beta[i] * each <= 1e-7) continue;
    std::vector<double> squared(n, 0.0);
    for (std::size_t j = 0; j < n; ++j)
      for (std::size_t c = 0; c < dim; ++c) {
        const double difference = points[i * dim + c] - points[j * dim + c];
        squared[j] += difference * difference;
      }
    search.run_distances(i, squared, true);
  }
}

void run_points(perplexity_search& search, std::vector<double> points, std::size_t n,
                const double* beta) {
  const std::size_t dim = points.size() / n;
  double most = 0, largest = 0;
  for (const double each : points) most = std::max(most, std::abs(each));
  const int exponent = most > 0 ? std::ilogb(most) + 1 : 0;
  for (double& each : points) each = std::ldexp(each, -exponent);
  auto query = matrices<double>({n, dim + 1}), key = query;
  for (std::size_t c = 0; c < dim; ++c) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += points[i * dim + c];
    for (std::size_t i = 0; i < n; ++i)
      key.numbers[i * (dim + 1) + c] = points[i * dim + c] - sum / static_cast<double>(n);
  }
  for (std::size_t i = 0; i < n; ++i) {
    double *const q = query.numbers.data() + i * (dim + 1), norm = 0;
    double* const k = key.numbers.data() + i * (dim + 1);
    for (std::size_t c = 0; c < dim; ++c) {
      q[c] = 2 * k[c];
      norm += k[c] * k[c];
    }
    q[dim] = -1;
    k[dim] = norm;
    largest = std::max(largest, norm);
  }
  search.run_products(query, key);
  search_again(search, points, n, largest, beta);
  for (std::size_t i = 0; i < n; ++i) search.put_in_units(i, 2 * exponent);
}

}  // namespace

void check_points(const strided_array& points, bool are_distances) {
  const extents& shape = points.shape();
  if (shape.size() != 2 || shape[0] < 2 || shape[1] < 1)
    refuse("points must be " +
           std::string(are_distances ? "squared distances (n, n) or (n, k)"
                                     : "an array (n, n_features)") +
           " of at least two points, got shape " + text_of(shape));
  const std::vector<double> numbers = numbers_of<double>(points);
  for (const double each : numbers)
    if (!std::isfinite(each)) refuse("points must be finite, got NaN or infinity");
  if (!are_distances) return;
  if (shape[1] > shape[0])
    refuse("points must be squared distances (n, n) or (n, k), of at most n columns, got shape " +
           text_of(shape));
  const double least = *std::min_element(numbers.begin(), numbers.end());
  if (least < 0) {
    const bool wide = points.layout().type == element_type::float64;
    refuse("squared distances must be at least 0, got " +
           (wide ? text_of(least) : text_of(static_cast<float>(least))));
  }
}

void run_perplexity(const strided_array& points, bool are_distances,
                    const number_or_array<double>& perplexity, const perplexity_options& options,
                    const perplexity_places& into) {
  const auto n = static_cast<std::size_t>(points.extent(2));
  const auto columns = static_cast<std::size_t>(points.extent(1));
  std::vector<double> target = read_perplexity(perplexity, points.extent(2));
  detail::check_threads(options.num_threads);
  if (!(options.tolerance >= 0) || std::isinf(options.tolerance))
    refuse("tolerance must be greater than 0, or 0 for the default, got " +
           text_of(options.tolerance));
  perplexity_search search(are_distances ? columns : n, std::move(target), options, into);
  if (!are_distances)
    run_points(search, numbers_of<double>(points), n, into.beta);
  else if (points.layout().type == element_type::float64)
    search.run_distances(0, numbers_of<double>(points), n == columns);
  else
    search.run_distances(0, numbers_of<float>(points), n == columns);
  for (std::size_t i = 0; i < n; ++i)
    if (!into.feasible[i]) into.beta[i] = std::numeric_limits<double>::quiet_NaN();
}

}  // namespace attnscale
