// SPDX-License-Identifier: BSD-3-Clause
//
// run(ladder_problem), run(received_ladder_problem): rows, and the weights that keys receive, at
// scales by doubling.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "attnscale/detail/refuse.hpp"
#include "attnscale/problem.hpp"
#include "exact/blocks.hpp"
#include "exact/statistics.hpp"
#include "kernels/numbers.hpp"
#include "kernels/tile/block.hpp"
#include "machine/dispatch.hpp"
#include "machine/scratch.hpp"
#include "machine/thread_pool.hpp"

namespace attnscale {
namespace {

using namespace detail;

/// Refuses scales and scores that a ladder does not have.
template <class Problem>
void check_ladder(const Problem& p) {
  check_scales(p);
  const bool fits = p.n_bases > 0
                        ? p.n_scales >= p.n_bases && p.n_scales <= ladder_rungs * p.n_bases
                        : p.n_scales == 0;
  if (!fits) refuse("a ladder must have from one to five scales for each base");
  bool plain = p.form.softcap == 0 && p.leading_keys == 0;
  for (const attention_head& head : p.heads)
    plain = plain && !head.tables.distance_scale && !head.tables.distance_bias;
  if (!plain) refuse("a ladder takes scaled products, without soft-cap, tables and leading keys");
}

/// Memory of ladder_sums for the rows of a block.
class block_results {
 public:
  block_results(const ladder_problem& p, int block_rows)
      : lanes_(block_rows),
        by_base_(static_cast<std::size_t>(3 * p.n_bases * lanes_)),
        by_scale_(static_cast<std::size_t>(2 * p.n_scales * lanes_)),
        first_key_(static_cast<std::size_t>(lanes_)) {
    const std::int64_t bases = p.n_bases * lanes_, scales = p.n_scales * lanes_;
    sums.base = by_base_.data();
    sums.edge = sums.base + bases;
    sums.top = sums.edge + bases;
    sums.weight = by_scale_.data();
    sums.first = sums.weight + scales;
    sums.first_key = first_key_.data();
  }

  ladder_sums sums;

 private:
  std::int64_t lanes_;
  std::vector<double> by_base_, by_scale_, first_key_;
};

/// Statistics of row r at scale s.
struct ladder_point {
  double entropy = 0, lse = -std::numeric_limits<double>::infinity(), max_weight = 0, first = 0;

  ladder_point(const ladder_problem& p, const ladder_sums& sums, std::int64_t lanes, std::int64_t s,
               std::int64_t r) {
    const std::int64_t base_at = s % p.n_bases * lanes + r, at = s * lanes + r;
    const double weight = sums.weight[at], top = sums.top[base_at], edge = sums.edge[base_at];
    if (weight != weight) {
      entropy = lse = max_weight = first = weight;
      return;
    }
    if (std::isinf(top)) return;  // no key is visible
    const auto power = static_cast<int>(s / p.n_bases);
    const double base = std::ldexp(sums.base[base_at], power), log_weight = std::log(weight);
    entropy = std::max(log_weight - ln2 * std::ldexp(sums.first[at], power) / weight, 0.0);
    lse = ln2 * base * edge + log_weight;
    max_weight = std::min(std::exp2(base * (top - edge)) / weight, 1.0);
    const double key = sums.first_key[r];
    const bool hidden = key == lowest(p.compute);
    first = hidden ? 0 : std::min(std::exp2(base * (key - edge)) / weight, 1.0);
  }

 private:
  static double lowest(element_type compute) {
    return compute == element_type::float64 ? std::numeric_limits<double>::lowest()
                                            : std::numeric_limits<float>::lowest();
  }
};

template <class T>
void write_ladder(const ladder_problem& p, const query_block& rows, const ladder_sums& sums,
                  std::int64_t lanes) {
  for (int r = 0; r < rows.count; ++r) {
    const std::int64_t row = rows.head * p.n_queries + rows.first + r;
    if (p.n_bases > 0) put<T>(p.top, row, sums.top[r]);
    for (std::int64_t s = 0; s < p.n_scales; ++s) {
      const ladder_point point(p, sums, lanes, s, r);
      const std::int64_t at = row * p.n_scales + s;
      put<T>(p.entropy, at, point.entropy);
      put<T>(p.lse, at, point.lse);
      put<T>(p.max_weight, at, point.max_weight);
      put<T>(p.first_weight, at, point.first);
    }
  }
}

/// Calls f(rows, stop) for each block of `block_rows` rows, the last ones first.
template <class F>
void for_blocks(const score_problem& p, int block_rows, const execution& how, F&& f) {
  const std::int64_t blocks = (p.n_queries + block_rows - 1) / block_rows;
  const auto tasks = static_cast<std::int64_t>(p.heads.size()) * blocks;
  parallel_for(tasks, how, [&](std::int64_t task, const stop_signal& stop) {
    f(query_block(p, task / blocks, (blocks - 1 - task % blocks) * block_rows, block_rows), stop);
  });
}

template <class Problem>
ladder_of_scales ladder_of(const Problem& p, const query_block& rows) {
  const block_scales scales = scales_of(p, rows);
  return {scales.scale, scales.scale_row, p.n_bases, p.n_scales};
}

}  // namespace

void run(const ladder_problem& p, const execution& how) {
  check_ladder(p);
  const bool wide = p.compute == element_type::float64;
  const ladder_kernels& kernels = active_kernels(p.compute).ladder;
  for_blocks(p, kernels.block_rows, how, [&](const query_block& rows, const stop_signal& stop) {
    const block_results results(p, kernels.block_rows);
    ladder_block block{scores_of(p, rows, {0, p.n_keys}, stop), ladder_of(p, rows), results.sums};
    block.scratch = thread_scratch(kernels.scratch(block));
    kernels.run(block);
    if (stop.requested()) return;
    wide ? write_ladder<double>(p, rows, results.sums, kernels.block_rows)
         : write_ladder<float>(p, rows, results.sums, kernels.block_rows);
  });
}

void run(const received_ladder_problem& p, const execution& how) {
  check_ladder(p);
  const std::int64_t item = p.compute == element_type::float64 ? 8 : 4;
  const ladder_kernels& kernels = active_kernels(p.compute).ladder;
  for_blocks(p, kernels.block_rows, how, [&](const query_block& rows, const stop_signal& stop) {
    received_ladder_block block{scores_of(p, rows, {0, p.n_keys}, stop), ladder_of(p, rows)};
    const std::int64_t first = rows.head * p.n_keys * item;
    block.top = static_cast<const char*>(p.top) + first;
    block.share = static_cast<const char*>(p.max_weight) + first * p.n_scales;
    block.received = p.received + (rows.head * p.n_queries + rows.first) * p.n_scales;
    block.scratch = thread_scratch(kernels.received_scratch(block));
    kernels.run_received(block);
  });
}

}  // namespace attnscale
