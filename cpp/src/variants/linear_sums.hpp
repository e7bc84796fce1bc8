// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/linear/linear.hpp"

namespace attnscale::detail {

/// Sums over `count` keys, in their own memory.
class key_sums {
 public:
  explicit key_sums(const linear_form& form) : features_(form.features), columns_(form.value_dim) {}

  std::int64_t count = 0;

  /// Resets to no keys.
  void clear() {
    count = 0;
    reset();
  }

  linear_sums view() {
    if (numbers_.empty()) reset();
    double* const at = numbers_.data();
    return {at, at + features_, at + 2 * features_};
  }

  /// Sums for queries to read; empty before the first key.
  linear_sums base() { return count ? view() : linear_sums{}; }

  /// Adds sums, after multiplying the previous ones by `fade`.
  void add(const linear_sums& more, std::int64_t keys, double fade = 1) {
    merge(view(), more, features_, columns_, fade);
    count += keys;
  }

  /// Merges sums over two sets of keys, in the order of the keys.
  static void merge(const linear_sums& into, const linear_sums& more, std::int64_t features,
                    std::int64_t columns, double fade = 1) {
    for (std::int64_t f = 0; f < features; ++f) {
      const double one = into.reference[f], two = more.reference[f];
      const double top = one > two || std::isnan(one) ? one : two;
      const double at = std::isinf(top) && top < 0 ? 0 : top;
      const double a = fade * (one == top ? 1 : std::exp(one - at));
      const double b = two == top ? 1 : std::exp(two - at);
      into.reference[f] = top;
      into.total[f] = into.total[f] * a + more.total[f] * b;
      double* const to = into.products + f * columns;
      const double* const from = more.products + f * columns;
      for (std::int64_t c = 0; c < columns; ++c) to[c] = to[c] * a + from[c] * b;
    }
  }

 private:
  void reset() {
    numbers_.assign(static_cast<std::size_t>(features_ * (columns_ + 2)), 0.0);
    std::fill_n(numbers_.begin(), features_, -std::numeric_limits<double>::infinity());
  }

  std::int64_t features_, columns_;
  std::vector<double> numbers_;
};

}  // namespace attnscale::detail
