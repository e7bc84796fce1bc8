// SPDX-License-Identifier: BSD-3-Clause
//
// From sums over rows to values with standard errors, and when there are enough rows.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attnscale/tally.hpp"

namespace attnscale::detail {

/// What the mean of a column is.
enum class column_kind : std::uint8_t {
  number,   ///< of any numbers
  share,    ///< of zeros and ones
  bounded,  ///< of numbers from 0 to 1
};

/// One number an entry and quantity.
struct values_and_errors {
  std::vector<double> value, error;
};

/// Standard error of a share k / rows that is not 0 where no event was seen, or nothing else: the
/// root mean square distance of the true share from k / rows, when before the rows every share was
/// as likely as another. It is sqrt(m (1 - m) / (rows + 3) + (m - k / rows)^2) with the rule of
/// succession m = (k + 1) / (rows + 2).
double share_error(double share, std::int64_t rows);

/// Means of the columns with their errors; `kinds` has one a column. Of a share the error is
/// share_error; of a bounded one it is where all rows are 0 or all are 1, which says nothing of
/// their spread.
values_and_errors means_and_shares(const tally& rows, const std::vector<column_kind>& kinds);

/// Pairs whose powers are averaged to one row of dot_product_variance.
constexpr std::int64_t pairs_of_row = 64;

/// Variance of s = q . k, variance over head_dim, mean and kurtosis, from rows of the mean s, s^2,
/// s^3 and s^4 of pairs_of_row samples. The error of the kurtosis is by the delta method.
values_and_errors dot_product_moments(const tally& rows, std::int64_t head_dim);

/// A target error is looked at each time this many rows are there, whatever the pieces of work are.
constexpr std::int64_t rows_between_looks = 256;

/// Draw until there are so many rows, then ask again; done if there are. Without a target those are
/// `most` rows; with one no more than that, and so many as it takes all errors to be at most it.
std::int64_t rows_wanted(std::int64_t rows, std::int64_t most, std::optional<double> target_error,
                         const std::vector<double>& errors);

}  // namespace attnscale::detail
