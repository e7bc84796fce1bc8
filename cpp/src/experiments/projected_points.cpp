// SPDX-License-Identifier: BSD-3-Clause
#include "experiments/projected_points.hpp"

#include <algorithm>
#include <cmath>

#include "attnscale/detail/refuse.hpp"

namespace attnscale::detail {
namespace {

/// Scales numbers by a power of two so that the largest magnitude is in [1/2, 1), unless all are 0.
void scale_to_one(std::vector<double>& numbers) {
  double largest = 0;
  for (const double x : numbers) largest = std::max(largest, std::abs(x));
  int exponent = 0;
  std::frexp(largest, &exponent);
  for (double& x : numbers) x = std::ldexp(x, -exponent);
}

void take_off_mean(std::vector<double>& numbers, std::size_t dim) {
  const std::size_t n = numbers.size() / dim;
  for (std::size_t c = 0; c < dim; ++c) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += numbers[i * dim + c];
    for (std::size_t i = 0; i < n; ++i) numbers[i * dim + c] -= sum / static_cast<double>(n);
  }
}

void check_distinct(const std::vector<float>& points, std::size_t dim) {
  std::vector<const float*> rows;
  for (std::size_t at = 0; at < points.size(); at += dim) rows.push_back(points.data() + at);
  const auto below = [dim](const float* a, const float* b) {
    return std::lexicographical_compare(a, a + dim, b, b + dim);
  };
  std::sort(rows.begin(), rows.end(), below);
  for (std::size_t i = 1; i < rows.size(); ++i)
    if (!below(rows[i - 1], rows[i]))
      refuse(
          "points must be distinct in float32, once their mean is taken off, got two equal ones, "
          "whose distance has no ratio");
}

}  // namespace

template <class T>
std::vector<float> projected_points(const T* points, std::int64_t n, std::int64_t dim) {
  if (n < 2 || dim < 1)
    refuse("points must have shape (n, dim) with n of at least 2, got (" + text_of(n) + ", " +
           text_of(dim) + ")");
  check_matrix_fits("n", n, dim);
  check_memory("points", points, n * dim);
  std::vector<double> wide(points, points + n * dim);
  for (const double x : wide) check_finite("points", x);
  const auto columns = static_cast<std::size_t>(dim);
  scale_to_one(wide);  // so that no sum overflows
  take_off_mean(wide, columns);
  scale_to_one(wide);
  std::vector<float> narrow(wide.begin(), wide.end());
  check_distinct(narrow, columns);
  return narrow;
}

template std::vector<float> projected_points(const float*, std::int64_t, std::int64_t);
template std::vector<float> projected_points(const double*, std::int64_t, std::int64_t);

}  // namespace attnscale::detail
