// SPDX-License-Identifier: BSD-3-Clause
#include "call/row_norm.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace attnscale::detail {
namespace {

/// A row divided by its largest number, and the length of the quotient: squares of numbers up to 1
/// neither overflow nor, for the largest ones, underflow. T is the compute type.
template <class T>
struct row_direction {
  double largest = 0;  ///< NaN if one of the numbers is
  double norm = 0;

  /// Writes row / largest.
  row_direction(const void* row, element_type type, std::ptrdiff_t column, std::int64_t n,
                T* divided) {
    for (std::int64_t c = 0; c < n; ++c) {
      const double size = std::abs(number_at(row, type, c * column));
      if (size > largest || std::isnan(size)) largest = size;
      if (std::isnan(largest)) break;
    }
    const T divisor = static_cast<T>(largest == 0 ? 1 : largest);
    for (std::int64_t c = 0; c < n; ++c) {
      divided[c] = static_cast<T>(number_at(row, type, c * column)) / divisor;
      norm += static_cast<double>(divided[c]) * static_cast<double>(divided[c]);
    }
    norm = std::sqrt(norm);
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
