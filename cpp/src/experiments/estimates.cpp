// SPDX-License-Identifier: BSD-3-Clause
#include "experiments/estimates.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace attnscale::detail {
namespace {

/// Clamps negative rounding errors to 0; NaN is kept.
double at_least_zero(double x) { return x < 0 ? 0 : x; }

/// Quadratic form slope . covariance slope.
double quadratic_form(const std::vector<double>& covariance, const std::array<double, 4>& slope) {
  double sum = 0;
  for (std::size_t a = 0; a < 4; ++a) {
    double row = 0;
    for (std::size_t b = 0; b < 4; ++b) row += covariance[a * 4 + b] * slope[b];
    sum += slope[a] * row;
  }
  return sum;
}

}  // namespace

double share_error(double share, std::int64_t rows) {
  const auto n = static_cast<double>(rows);
  const double mean = (share * n + 1) / (n + 2), miss = mean - share;
  return std::sqrt(mean * (1 - mean) / (n + 3) + miss * miss);
}

values_and_errors means_and_shares(const tally& rows, const std::vector<column_kind>& kinds) {
  values_and_errors found{rows.mean(), rows.standard_error()};
  for (std::size_t i = 0; rows.rows() > 0 && i < found.value.size(); ++i) {
    const double mean = found.value[i];
    const column_kind kind = kinds[i % kinds.size()];
    const bool alike = mean == 0 || mean == 1;
    if (kind == column_kind::share || (kind == column_kind::bounded && alike))
      found.error[i] = share_error(mean, rows.rows());
  }
  return found;
}

values_and_errors dot_product_moments(const tally& rows, std::int64_t head_dim) {
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  if (rows.rows() == 0) return {std::vector<double>(4, none), std::vector<double>(4, none)};
  const std::vector<double> means = rows.mean();
  const double m1 = means[0], m2 = means[1], m3 = means[2], m4 = means[3];
  const auto d = static_cast<double>(head_dim), blocks = static_cast<double>(rows.rows());
  const double count = blocks * static_cast<double>(pairs_of_row);
  const double mu2 = m2 - m1 * m1, squared = mu2 * mu2, cubed = std::pow(mu2, 3.0);
  const double mu4 = m4 - 4 * m1 * m3 + 6 * (m1 * m1) * m2 - 3 * std::pow(m1, 4.0);
  const double variance = mu2 * count / (count - 1);
  const double error = std::sqrt(at_least_zero(mu4 - squared * (count - 3) / (count - 1)) / count);
  // Derivatives of mu2 and mu4 by the four means give those of the kurtosis, mu4 / mu2^2.
  const std::array<double, 4> d_mu2{-2 * m1, 1, 0, 0};
  const std::array<double, 4> d_mu4{-4 * m3 + 12 * m1 * m2 - 12 * std::pow(m1, 3.0), 6 * (m1 * m1),
                                    -4 * m1, 1};
  std::array<double, 4> slope{};
  for (std::size_t i = 0; i < 4; ++i) slope[i] = d_mu4[i] / squared - 2 * mu4 / cubed * d_mu2[i];
  const std::vector<double> covariance = rows.covariance();
  const double spread = at_least_zero(quadratic_form(covariance, slope));
  values_and_errors found{{variance, variance / d, m1, mu4 / squared},
                          {error, error / d, std::sqrt(mu2 / count), std::sqrt(spread / blocks)}};
  if (covariance[0] == 0) return found;  // one number repeated
  // Far from 0, moments about 0 lose digits, the fourth first: return NaN.
  const double far = m1 * m1;
  if (far > 1e6 * mu2) found.value[3] = found.error[3] = found.error[0] = found.error[1] = none;
  if (far > 1e10 * mu2) found.value[0] = found.value[1] = found.error[2] = none;
  return found;
}

std::int64_t rows_wanted(std::int64_t rows, std::int64_t most, std::optional<double> target_error,
                         const std::vector<double>& errors) {
  if (!target_error) return most;
  const bool reached = std::all_of(errors.begin(), errors.end(),
                                   [&](double error) { return error <= *target_error; });
  if (rows > 0 && rows % rows_between_looks == 0 && reached) return rows;
  return std::min(most, (rows / rows_between_looks + 1) * rows_between_looks);
}

}  // namespace attnscale::detail
