// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "attnscale/problem.hpp"
#include "blocks.hpp"
#include "kernels/block.hpp"

namespace attnscale::detail {

/// Row r of several ranges of keys becomes row r of `total`; share[i] is what part i's output
/// weighs in the whole (0 if it saw no key).
void merge_sums(const row_sums* parts, std::int64_t count, int row, row_sums& total, double* share);

/// The statistics that the problem asks for, from the sums of a block.
void write_statistics(const attention_problem& problem, const query_block& rows,
                      const row_sums& sums);

/// Element i of a row of any type <- x, rounded once.
void write_value(void* row, element_type type, std::ptrdiff_t i, double x);

}  // namespace attnscale::detail
