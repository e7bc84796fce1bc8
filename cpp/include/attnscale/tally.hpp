// SPDX-License-Identifier: BSD-3-Clause
//
// Mean, covariance and standard errors of rows of numbers that arrive in parts:
//
//   attnscale::tally rows(2);         // two columns
//   rows.add(first.data(), 100);      // 100 rows, contiguous
//   rows.add(others.data(), 28);
//   rows.mean(), rows.standard_error()
//
// The sums run strictly from the first row to the last, so that the same rows give the same bits
// however they are split. They are of differences from the first row: no digits are lost where the
// spread is small against the mean.
#pragma once

#include <cstdint>
#include <vector>

#include "attnscale/detail/export.hpp"

namespace attnscale {

/// Sums that a tally keeps.
struct tally_sums {
  std::int64_t rows = 0;           ///< number of rows added
  std::vector<double> origin{};    ///< the first row, of entries x columns numbers
  std::vector<double> sums{};      ///< of the differences from it, as many
  std::vector<double> products{};  ///< of the outer product of the differences, for each entry:
                                   ///< entries x columns x columns numbers
};

/// Running sums. A row has one group of columns for each of its entries; columns of one entry have
/// a covariance.
class ATTNSCALE_EXPORT tally {
 public:
  /// An empty tally. Refuses fewer than one column or entry.
  explicit tally(std::int64_t columns = 1, std::int64_t entries = 1);

  /// Continues from the result of kept(). Refuses arrays of another size.
  tally(std::int64_t columns, std::int64_t entries, tally_sums kept);

  /// Adds `count` rows of entries x columns numbers, contiguous.
  void add(const double* rows, std::int64_t count);

  std::int64_t columns() const { return columns_; }
  std::int64_t entries() const { return entries_; }
  std::int64_t rows() const { return kept_.rows; }
  const tally_sums& kept() const { return kept_; }

  /// The mean row, entries x columns numbers; NaN without rows.
  std::vector<double> mean() const;

  /// Unbiased covariance of the columns, entries x columns x columns numbers; NaN with fewer than 2
  /// rows.
  std::vector<double> covariance() const;

  /// Standard error of the mean, sqrt(variance / rows): entries x columns numbers; NaN with fewer
  /// than 2 rows.
  std::vector<double> standard_error() const;

 private:
  std::size_t width() const { return static_cast<std::size_t>(entries_ * columns_); }

  std::int64_t columns_, entries_;
  tally_sums kept_;
};

}  // namespace attnscale
