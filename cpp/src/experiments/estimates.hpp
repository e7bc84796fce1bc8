// SPDX-License-Identifier: BSD-3-Clause
//
// From sums over rows to values with standard errors, and the stopping rule.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attnscale/tally.hpp"

namespace attnscale::detail {

/// Kinds of column, by their values.
enum class column_kind : std::uint8_t {
  number,   ///< any numbers
  share,    ///< zeros and ones
  bounded,  ///< numbers from 0 to 1
};

/// One number per entry and quantity.
struct values_and_errors {
  std::vector<double> value, error;
};

/// Standard error of a share k / rows that is not 0 if all events, or none, were seen: the root
/// mean square distance of the true share from k / rows, with a uniform prior. It is sqrt(m (1 - m)
/// / (rows + 3) + (m - k / rows)^2) with the rule of succession m = (k + 1) / (rows + 2).
double share_error(double share, std::int64_t rows);

/// Means of the columns with their errors; `kinds` has one entry per column. The error of a share
/// is share_error, also of a bounded column if all rows are 0 or all are 1, which says nothing
/// about their spread.
values_and_errors means_and_shares(const tally& rows, const std::vector<column_kind>& kinds);

/// Pairs averaged to one row of dot_product_variance.
constexpr std::int64_t pairs_of_row = 64;

/// Variance of s = q . k, variance over head_dim, mean and kurtosis, from rows of the means of s,
/// s^2, s^3 and s^4 over pairs_of_row samples. The error of the kurtosis is by the delta method.
values_and_errors dot_product_moments(const tally& rows, std::int64_t head_dim);

/// Rows between checks of a target error, however the work is split.
constexpr std::int64_t rows_between_looks = 256;

/// Number of rows to draw before the next check; finished when there are as many. Without a target
/// it is `most`; with one, the least multiple of the check interval, up to `most`, at which all
/// errors are at most the target.
std::int64_t rows_wanted(std::int64_t rows, std::int64_t most, std::optional<double> target_error,
                         const std::vector<double>& errors);

}  // namespace attnscale::detail
