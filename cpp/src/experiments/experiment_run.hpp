// SPDX-License-Identifier: BSD-3-Clause
//
// Runs one case of an experiment: how many rows, in what pieces, interrupts, and going on from a
// state.
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

/// A case, ready to run.
struct experiment_case {
  std::string_view name;
  std::vector<quantity> quantities;
  std::vector<std::string> entries;
  /// All that its numbers depend on, but for the seed.
  std::vector<std::pair<std::string, std::string>> parameters;
  std::vector<std::uint64_t> identity;  ///< tells its random numbers from those of other cases
  std::int64_t usual_samples = 1000;
  std::int64_t block = 1;  ///< samples of a row
  double cost = 1;         ///< about how many operations a row takes
  /// Rows first ... first + count - 1 of the generator with that key: (count, entries,
  /// quantities); the means of dot_product_variance are of powers.
  std::function<void(std::uint64_t key, std::int64_t first, std::int64_t count, double* out,
                     const execution& how)>
      draw;
  /// From the sums to what the quantities are; empty: means and shares.
  std::function<values_and_errors(const tally&)> estimate;
};

experiment_result run_case(const experiment_case& what, const run_options& how);

/// Refuses a count below the least, or beyond 2^53, where float64, in which laws and means are
/// computed, skips integers.
void check_count(const char* name, std::int64_t number, std::int64_t least = 1);

}  // namespace attnscale::detail
