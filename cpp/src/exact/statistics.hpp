// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "attnscale/problem.hpp"
#include "exact/blocks.hpp"
#include "kernels/tile/block.hpp"

namespace attnscale::detail {

/// Row r of several ranges of keys becomes row r of `total`; share[i] is what part i's output
/// weighs in the whole (0 if it saw no key).
void merge_sums(const row_sums* parts, std::int64_t count, int row, row_sums& total, double* share);

/// Adds a sink of this score to the sums of a row, as one more outcome, and returns its weight.
/// The largest score stays that of the keys: -inf if there are none.
double add_sink(row_sums& sums, int row, double score);

/// What the keys weigh together beside a sink of this score (null: none).
double share_of_keys(const row_sums& sums, int row, const double* sink);

/// Element `at` of an output in type T; null: nothing.
template <class T>
void put(void* out, std::int64_t at, double x) {
  if (out) static_cast<T*>(out)[at] = static_cast<T>(x);
}

/// Which sums its statistics need, as wanted_sums.
int sums_for(const attention_problem& problem);

/// The statistics that the problem asks for, from the sums of a block whose normalizer weighs
/// scores one by one; sink: weights of the sinks of a softmax.
void write_statistics(const attention_problem& problem, const query_block& rows,
                      const row_sums& sums, const double* sink);

/// The same where it takes all scores of a row.
void write_statistics(const attention_problem& problem, const query_block& rows,
                      const row_report& report);

/// Element i of a row of any type <- x, rounded once.
void write_value(void* row, element_type type, std::ptrdiff_t i, double x);
double read_value(const void* row, element_type type, std::ptrdiff_t i);

}  // namespace attnscale::detail
