// SPDX-License-Identifier: BSD-3-Clause
//
// Running one case of an experiment: number of rows, pieces of work, interrupts, and resuming from
// a state.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attnscale/experiments.hpp"
#include "experiments/estimates.hpp"
#include "experiments/experiment_rows.hpp"

namespace attnscale::detail {

/// A case that is ready to run.
struct experiment_case {
  std::string_view name;
  std::vector<quantity> quantities;
  std::vector<std::string> entries;
  /// All parameters that its numbers depend on, except the seed.
  std::vector<std::pair<std::string, std::string>> parameters;
  std::vector<std::uint64_t> identity;  ///< separates its random numbers from those of other cases
  std::int64_t usual_samples = 1000;
  std::int64_t block = 1;  ///< samples per row
  double cost = 1;         ///< approximate number of operations per row
  /// Rows first ... first + count - 1 of the generator with that key: (count, entries, quantities);
  /// dot_product_variance has means of powers.
  std::function<void(std::uint64_t key, std::int64_t first, std::int64_t count, double* out,
                     const execution& how)>
      draw;
  /// Estimates from the sums; empty: means and shares.
  std::function<values_and_errors(const tally&)> estimate;
};

experiment_result run_case(const experiment_case& what, const run_options& how);

/// Refuses a count below the least, or beyond 2^53, where float64, the type of laws and means,
/// skips integers.
void check_count(const char* name, std::int64_t number, std::int64_t least = 1);

}  // namespace attnscale::detail
