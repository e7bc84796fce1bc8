// SPDX-License-Identifier: BSD-3-Clause
#include "call/row_norm.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace attnscale::detail {
namespace {

/// Copies a row of any type and stride; T holds its numbers.
template <class T>
void copy_row(const void* row, element_type type, std::ptrdiff_t column, std::int64_t n, T* to) {
  const auto copy = [&](const auto* from) {
    if (column == 1)
      for (std::int64_t c = 0; c < n; ++c) to[c] = static_cast<T>(from[c]);
    else
      for (std::int64_t c = 0; c < n; ++c) to[c] = static_cast<T>(from[c * column]);
  };
  if (type == element_type::float32) return copy(static_cast<const float*>(row));
  if (type == element_type::float64) return copy(static_cast<const double*>(row));
  for (std::int64_t c = 0; c < n; ++c) to[c] = static_cast<T>(number_at(row, type, c * column));
}

/// The largest absolute value of a row, apart from NaN; in lanes, which a compiler turns into
/// vectors.
template <class T>
T largest_of(const T* row, std::int64_t n) {
  constexpr std::int64_t lanes = 8;
  T top[lanes] = {};
  const auto visit = [&](std::int64_t lane, std::int64_t c) {
    const T size = std::abs(row[c]);
    top[lane] = size > top[lane] ? size : top[lane];
  };
  std::int64_t c = 0;
  for (; c + lanes <= n; c += lanes)
    for (std::int64_t lane = 0; lane < lanes; ++lane) visit(lane, c + lane);
  for (std::int64_t lane = 0; c < n; ++lane, ++c) visit(lane, c);
  return *std::max_element(top, top + lanes);
}

/// The sum of the squares of a row, in the order of NumPy's einsum on vectors of two doubles.
template <class T>
double squares_of(const T* row, std::int64_t n) {
  const auto square = [&](std::int64_t c) {
    return static_cast<double>(row[c]) * static_cast<double>(row[c]);
  };
  double sums[2] = {};
  std::int64_t c = 0;
  for (; c + 8 <= n; c += 8)
    for (std::int64_t lane = 0; lane < 2; ++lane) {
      const std::int64_t at = c + lane;
      sums[lane] = square(at) + (square(at + 2) + (square(at + 4) + (square(at + 6) + sums[lane])));
    }
  for (; c < n; ++c) sums[c % 2] += square(c);
  return sums[0] + sums[1];
}

/// A row divided by its largest number, and the length of the quotient: squares of numbers up to 1
/// neither overflow nor, for the largest ones, underflow. T is the compute type.
template <class T>
struct row_direction {
  double largest = 0;  ///< apart from NaN
  double norm = 0;     ///< NaN if a number of the row is NaN or infinite

  /// Writes row / largest.
  row_direction(const void* row, element_type type, std::ptrdiff_t column, std::int64_t n,
                T* divided) {
    copy_row(row, type, column, n, divided);
    const T most = largest_of(divided, n);
    const T divisor = most == 0 ? 1 : most;
    for (std::int64_t c = 0; c < n; ++c) divided[c] /= divisor;
    largest = static_cast<double>(most);
    norm = std::sqrt(squares_of(divided, n));
  }
};

double length_of(row_norm norm, std::int64_t head_dim) {
  return norm == row_norm::l2 ? 1 : std::sqrt(static_cast<double>(head_dim));
}

/// Calls visit(start of a row, its index) for all rows of (..., n, dim) in C order.
template <class Visit>
void for_each_row(const strided_array& array, Visit visit) {
  const strided_array rows = array.with_inner(1);
  const extents lead = rows.leading();
  std::int64_t number = 0;
  for_each_index(lead, [&](const extents& index) { visit(rows.at(index, lead), number++); });
}

}  // namespace

template <class T>
row_array<T> normalized(const strided_array& array, row_norm norm) {
  row_array<T> result{{array.shape().begin(), array.shape().end()}, {}};
  result.numbers.resize(static_cast<std::size_t>(count_entries(array.shape())));
  const std::int64_t n = array.extent(1);
  const double length = length_of(norm, n);
  for_each_row(array, [&](const void* row, std::int64_t number) {
    T* const to = result.numbers.data() + number * n;
    const row_direction<T> found(row, array.layout().type, array.stride(1), n, to);
    const double factor = length / (found.norm == 0 ? 1 : found.norm);
    for (std::int64_t c = 0; c < n; ++c)
      to[c] = static_cast<T>(static_cast<double>(to[c]) * factor);
  });
  return result;
}

template <class T>
void through_norm(const strided_array& array, row_norm norm, T* gradient) {
  const std::int64_t n = array.extent(1);
  const double length = length_of(norm, n);
  std::vector<double> unit(static_cast<std::size_t>(n));
  for_each_row(array, [&](const void* row, std::int64_t number) {
    T* const g = gradient + number * n;
    const row_direction<double> found(row, array.layout().type, array.stride(1), n, unit.data());
    double along = 0;
    bool seen = false;
    for (std::int64_t c = 0; c < n; ++c) {
      double& x = unit[static_cast<std::size_t>(c)];
      x /= found.norm == 0 ? 1 : found.norm;
      along += x * g[c];
      seen |= g[c] != 0;
    }
    const double factor = found.norm == 0 ? 0 : length / (found.norm * found.largest);
    for (std::int64_t c = 0; c < n; ++c)
      g[c] =
          seen ? static_cast<T>((g[c] - unit[static_cast<std::size_t>(c)] * along) * factor) : T(0);
  });
}

template row_array<float> normalized(const strided_array&, row_norm);
template row_array<double> normalized(const strided_array&, row_norm);
template void through_norm(const strided_array&, row_norm, float*);
template void through_norm(const strided_array&, row_norm, double*);

}  // namespace attnscale::detail
