// SPDX-License-Identifier: BSD-3-Clause
//
// attention_options::qk_norm: rows of a length, and the way back of their gradients.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "attnscale/dense_array.hpp"
#include "attnscale/options.hpp"
#include "attnscale/strided_array.hpp"

namespace attnscale::detail {

/// A row divided by its largest number, and the length of what is left: squares of numbers up to 1
/// neither overflow nor, for the largest ones, vanish. T is the type of the arithmetic.
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

inline double length_of(row_norm norm, std::int64_t head_dim) {
  return norm == row_norm::l2 ? 1 : std::sqrt(static_cast<double>(head_dim));
}

/// Where row number `index` of an array starts, all of its axes but the last one leading.
inline const void* row_at(const strided_array& rows, const extents& index) {
  const extents& shape = rows.shape();
  return rows.at(index, {shape.begin(), shape.end() - 1});
}

/// Calls visit(where a row starts, its number) for all rows of (..., n, dim) in C order.
template <class Visit>
void for_each_row(const strided_array& array, Visit visit) {
  const strided_array rows = array.with_inner(1);
  const extents lead(array.shape().begin(), array.shape().end() - 1);
  std::int64_t number = 0;
  for_each_index(lead, [&](const extents& index) { visit(row_at(rows, index), number++); });
}

/// The rows of (..., n, head_dim) brought to the length of `norm`.
template <class T>
dense_array<T> normalized(const strided_array& array, row_norm norm) {
  dense_array<T> result = new_array<T>(array.shape(), {});
  const std::int64_t n = array.extent(1);
  const double length = length_of(norm, n);
  for_each_row(array, [&](const void* row, std::int64_t number) {
    T* const to = result.data() + number * n;
    const row_direction<T> found(row, array.layout().type, array.stride(1), n, to);
    const double factor = length / (found.norm == 0 ? 1 : found.norm);
    for (std::int64_t c = 0; c < n; ++c)
      to[c] = static_cast<T>(static_cast<double>(to[c]) * factor);
  });
  return result;
}

/// Turns the gradient of normalised rows into that of the rows `array`: 0 for rows of zeros, and
/// where it was 0, which holds for rows that nothing sees even if they hold a NaN.
template <class T>
void through_norm(const strided_array& array, row_norm norm, dense_array<T>& gradient) {
  const std::int64_t n = array.extent(1);
  const double length = length_of(norm, n);
  std::vector<double> unit(static_cast<std::size_t>(n));
  for_each_row(array, [&](const void* row, std::int64_t number) {
    T* const g = gradient.data() + number * n;
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

}  // namespace attnscale::detail
