// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "attnscale/problem.hpp"
#include "exact/blocks.hpp"
#include "kernels/tile/block.hpp"

namespace attnscale::detail {

/// Merges row r of several ranges of keys into row r of `total`; share[i] is the weight of part i's
/// output in the whole (0 if it saw no keys).
void merge_sums(const row_sums* parts, std::int64_t count, int row, row_sums& total, double* share);

/// Adds a sink of this score to the sums of a row, as one more outcome, and returns its weight. The
/// largest score stays that of the keys: -inf without keys.
double add_sink(row_sums& sums, int row, double score);

/// Total weight of the keys beside a sink of this score (null: no sink).
double share_of_keys(const row_sums& sums, int row, const double* sink);

/// Element `at` of an output in type T; null for a null output.
template <class T>
void put(void* out, std::int64_t at, double x) {
  if (out) static_cast<T*>(out)[at] = static_cast<T>(x);
}

/// Sums that the problem's statistics need, as wanted_sums.
int sums_for(const attention_problem& problem);

/// Writes the statistics of a problem, from the sums of a block whose normalizer weighs scores one
/// by one; sink: weights of the sinks of a softmax.
void write_statistics(const attention_problem& problem, const query_block& rows,
                      const row_sums& sums, const double* sink);

/// Writes the statistics of a problem whose normalizer takes all scores of a row.
void write_statistics(const attention_problem& problem, const query_block& rows,
                      const row_report& report);

/// Element i of a row of any type <- x, rounded once.
void write_value(void* row, element_type type, std::ptrdiff_t i, double x);
double read_value(const void* row, element_type type, std::ptrdiff_t i);

}  // namespace attnscale::detail
