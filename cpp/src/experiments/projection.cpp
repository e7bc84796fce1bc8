// SPDX-License-Identifier: BSD-3-Clause
//
// project and compare_distances: panels times ranges of rows become tasks; partial results are
// merged in the order of the tasks.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attnscale/detail/refuse.hpp"
#include "attnscale/montecarlo.hpp"
#include "experiments/montecarlo_checks.hpp"
#include "kernels/level.hpp"
#include "kernels/random/random.hpp"
#include "machine/scratch.hpp"
#include "machine/thread_pool.hpp"

namespace attnscale {
namespace {

using namespace detail;

/// Rows per task: enough to be worth a panel, few enough for sums that stay in the cache.
constexpr std::int64_t projected_rows = 512, compared_rows = 1024;

/// A rectangle of pairs above the diagonal.
struct pairs_task {
  std::int64_t panel, first_row, last_row;
};

/// Tasks, with panels of many rows above the diagonal first, so that the last ones are short.
std::vector<pairs_task> tasks_of(std::int64_t points, std::int64_t columns) {
  std::vector<pairs_task> tasks;
  for (std::int64_t panel = blocks_of(points, columns) - 1; panel >= 0; --panel) {
    const std::int64_t end = std::min(points, (panel + 1) * columns);
    for (std::int64_t row = 0; row < end; row += compared_rows)
      tasks.push_back({panel, row, std::min(end, row + compared_rows)});
  }
  return tasks;
}

/// Results of one task.
struct pairs_found {
  ratio_sums sums{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                  0, 0};
  std::vector<std::int64_t> outside;
};

distance_ratios merge(const std::vector<pairs_found>& all, std::int64_t points, std::size_t n_eps) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  distance_ratios result{none, none, none, none, std::vector<std::int64_t>(n_eps, 0)};
  if (points < 2) return result;
  ratio_sums sums = pairs_found{}.sums;
  for (const pairs_found& found : all) {
    sums.least = std::min(sums.least, found.sums.least);
    sums.most = std::max(sums.most, found.sums.most);
    sums.first += found.sums.first;
    sums.second += found.sums.second;
    for (std::size_t k = 0; k < n_eps; ++k) result.outside[k] += found.outside[k];
  }
  const auto n = static_cast<double>(points);
  const double pairs = n * (n - 1) / 2, mean = sums.first / pairs;
  result.least = 1 + sums.least;
  result.most = 1 + sums.most;
  result.mean = 1 + mean;
  result.variance = std::max(0.0, sums.second / pairs - mean * mean);
  if (mean != mean) result.least = result.most = result.variance = mean;
  return result;
}

}  // namespace

namespace random {

void project(float* out, std::int64_t columns, const float* points, std::int64_t n_points,
             std::int64_t dim, const projection& what, const execution& how) {
  check_projection(what, columns, n_points, dim);
  check_memory("points", points, n_points * dim);
  check_memory("out", out, n_points * columns);
  const random_unit& table = active_kernels().random;
  const std::int64_t width = table.panel_columns, panels = blocks_of(columns, width);
  const std::int64_t ranges = blocks_of(n_points, projected_rows);
  parallel_for(panels * ranges, how, [&](std::int64_t task, const stop_signal& stop) {
    const std::int64_t column = task % panels * width, row = task / panels * projected_rows;
    projection_block block{};
    block.source = {what.from, purpose::main};
    block.kind = what.kind;
    block.density = what.density;
    block.points = points + row * dim;
    block.rows = std::min(projected_rows, n_points - row);
    block.dim = dim;
    block.first_column = column;
    block.columns = std::min(width, columns - column);
    block.factor = static_cast<float>(1 / std::sqrt(static_cast<double>(columns)));
    block.out = out + row * columns + column;
    block.out_stride = columns;
    block.stop = &stop;
    block.scratch = thread_scratch(table.project_scratch(block));
    table.project(block);
  });
}

distance_ratios compare_distances(const float* before, std::int64_t dim_before, const float* after,
                                  std::int64_t dim_after, std::int64_t n_points,
                                  const std::vector<double>& eps, const execution& how) {
  check_comparison(dim_before, dim_after, n_points, eps);
  check_memory("before", before, n_points * dim_before);
  check_memory("after", after, n_points * dim_after);
  const random_unit& table = active_kernels().random;
  const std::vector<pairs_task> tasks = tasks_of(n_points, table.panel_columns);
  std::vector<pairs_found> found(tasks.size());
  parallel_for(static_cast<std::int64_t>(tasks.size()), how,
               [&](std::int64_t task, const stop_signal& stop) {
                 const auto at = static_cast<std::size_t>(task);
                 found[at].outside.assign(eps.size(), 0);
                 distance_block block{};
                 block.before = {before, dim_before};
                 block.after = {after, dim_after};
                 block.points = n_points;
                 block.panel = tasks[at].panel;
                 block.first_row = tasks[at].first_row;
                 block.last_row = tasks[at].last_row;
                 block.eps = eps.data();
                 block.n_eps = static_cast<std::int64_t>(eps.size());
                 block.sums = &found[at].sums;
                 block.outside = found[at].outside.data();
                 block.stop = &stop;
                 block.scratch = thread_scratch(table.distance_scratch(block));
                 table.distance_ratios(block);
               });
  return merge(found, n_points, eps.size());
}

}  // namespace random
}  // namespace attnscale
