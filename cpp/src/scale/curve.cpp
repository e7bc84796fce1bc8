// SPDX-License-Identifier: BSD-3-Clause
//
// run(curve_problem): statistics of every row at many scales, from one pass over q . k.
#include <cmath>
#include <limits>
#include <vector>

#include "attnscale/problem.hpp"
#include "exact/blocks.hpp"
#include "exact/query_rescaling.hpp"
#include "exact/statistics.hpp"
#include "kernels/numbers.hpp"
#include "kernels/tile/block.hpp"
#include "machine/dispatch.hpp"
#include "machine/scratch.hpp"
#include "machine/thread_pool.hpp"

namespace attnscale {
namespace {

using namespace detail;

constexpr double largest = std::numeric_limits<double>::max();

/// Statistics of row r at one scale.
struct curve_point {
  double entropy, lse, mean, variance;

  curve_point(const curve_sums& s, int r) {
    const double weight = s.weight[r];
    if (weight == 0) {
      entropy = mean = variance = 0;
      lse = -std::numeric_limits<double>::infinity();
      return;
    }
    const double log_weight = std::log(weight), raw = s.raw_first[r] / weight;
    entropy = log_weight - ln2 * s.first[r] / weight;
    if (entropy < 0) entropy = 0;  // rounding of a one-hot row; NaN is kept
    lse = ln2 * s.reference[r] + log_weight;
    mean = s.center[r] + raw;
    variance = s.raw_second[r] / weight - raw * raw;
    // Rounding of equal products; if the square of the mean overflows, the variance is unknown.
    if (variance < 0) variance = raw * raw <= largest ? 0 : std::numeric_limits<double>::infinity();
    if (weight != weight) lse = mean = variance = weight;
  }
};

template <class T>
void write_curve(const curve_problem& p, const query_block& rows,
                 const std::vector<curve_sums>& sums) {
  const auto n_scales = static_cast<std::int64_t>(p.scales.size());
  for (int r = 0; r < rows.count; ++r)
    for (std::int64_t s = 0; s < n_scales; ++s) {
      const std::int64_t at = (rows.head * p.n_queries + rows.first + r) * n_scales + s;
      const curve_point point(sums[static_cast<std::size_t>(s)], r);
      put<T>(p.entropy, at, point.entropy);
      put<T>(p.lse, at, point.lse);
      put<T>(p.mean, at, point.mean);
      put<T>(p.variance, at, point.variance);
    }
}

void run_in_range(const curve_problem& p, const execution& how) {
  const bool wide = p.compute == element_type::float64;
  const curve_kernels& kernels = active_kernels(p.compute).curve;
  const std::int64_t blocks = (p.n_queries + kernels.block_rows - 1) / kernels.block_rows;
  const auto tasks = static_cast<std::int64_t>(p.heads.size()) * blocks;
  parallel_for(tasks, how, [&](std::int64_t task, const stop_signal& stop) {
    const query_block rows(p, task / blocks, (blocks - 1 - task % blocks) * kernels.block_rows,
                           kernels.block_rows);
    std::vector<curve_sums> sums(p.scales.size());
    curve_block block{scores_of(p, rows, {0, p.n_keys}, stop),
                      {.scales = p.scales.data(),
                       .n_scales = static_cast<std::int64_t>(p.scales.size()),
                       .sums = sums.data()}};
    block.scratch = thread_scratch(kernels.scratch(block));
    kernels.run(block);
    if (wide)
      write_curve<double>(p, rows, sums);
    else
      write_curve<float>(p, rows, sums);
  });
}

}  // namespace

void run(const curve_problem& problem, const execution& how) {
  check_rows(problem);
  query_rescaling rescaling(problem);
  if (!rescaling.needed()) return run_in_range(problem, how);
  curve_problem own = problem;
  rescaling.apply(own);
  run_in_range(own, how);
  rescaling.undo(problem);
}

}  // namespace attnscale
