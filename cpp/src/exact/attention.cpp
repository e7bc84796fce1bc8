// SPDX-License-Identifier: BSD-3-Clause
//
// run(attention_problem): splits the problem into tasks (head, block of queries, range of keys),
// runs the kernels on them and turns their sums into statistics. Blocks of queries and ranges of
// keys, which determine the bits, depend on the problem only, so that results are the same for any
// number of threads. The grouping of heads that share keys does depend on it.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "attnscale/normalizer_traits.hpp"
#include "attnscale/problem.hpp"
#include "attnscale/threads.hpp"
#include "exact/blocks.hpp"
#include "exact/heads_as_rows.hpp"
#include "exact/query_rescaling.hpp"
#include "exact/statistics.hpp"
#include "kernels/tile/block.hpp"
#include "machine/dispatch.hpp"
#include "machine/scratch.hpp"
#include "machine/thread_cost.hpp"
#include "machine/thread_pool.hpp"

namespace attnscale {
namespace {

using namespace detail;

/// Keys per range: problems with few rows and many keys also split the keys, to use all threads.
constexpr std::int64_t split_keys = 8192;
constexpr std::int64_t enough_tasks = 16;

/// Neighbouring blocks of a sliding window per task: they see nearly the same keys, which then stay
/// in one core's cache.
constexpr std::int64_t window_blocks = 4;

/// Whether both ends of the rows' intervals move, as in a sliding window or packed documents.
bool slides(const attention_problem& p) {
  return !p.heads.empty() && p.heads[0].begin && p.heads[0].end && p.begin_row != 0 &&
         p.end_row != 0;
}

/// Tasks of a problem: ranges of blocks of one head, largest first within a head where a causal
/// mask makes them unequal.
struct task_plan {
  std::int64_t block_rows, blocks, splits;
  std::int64_t group;  ///< blocks per task
  std::int64_t tasks;  ///< per head

  /// given: heads of the call, several of which may be rows of one head here. Bits depend on it.
  task_plan(const attention_problem& p, std::int64_t rows, std::int64_t given) : block_rows(rows) {
    const auto heads = static_cast<std::int64_t>(p.heads.size());
    blocks = (p.n_queries + rows - 1) / rows;
    // Keys are split only where the sums of two ranges can be merged: sums of exponentials.
    const bool few = blocks * given < enough_tasks && traits_of(p.rule).is_exponential;
    splits = few ? std::max<std::int64_t>(1, p.n_keys / split_keys) : 1;
    group = slides(p) && blocks * heads >= window_blocks * 4 * enough_tasks ? window_blocks : 1;
    tasks = (blocks + group - 1) / group;
  }
  std::int64_t first_block(std::int64_t task) const { return (tasks - 1 - task % tasks) * group; }
  std::int64_t last_block(std::int64_t task) const {
    return std::min(first_block(task) + group, blocks);
  }
};

class attention_run {
 public:
  attention_run(const attention_problem& problem, const execution& how, std::int64_t given_heads)
      : p_(problem),
        how_(how),
        kernels_(attend_kernels_for(problem)),
        traits_(traits_of(problem.rule)),
        plan_(problem, kernels_.block_rows, given_heads) {
    // Lists hold keys in 32 bits: only a broadcast array can have more keys than that in memory.
    if (traits_.from_all_scores && p_.n_keys > UINT32_MAX) throw std::bad_alloc();
  }

  void operator()() {
    const auto heads = static_cast<std::int64_t>(p_.heads.size());
    if (plan_.splits > 1) return run_split(heads);
    parallel_for(heads * plan_.tasks, how_, [&](std::int64_t task, const stop_signal& stop) {
      const std::int64_t head = task / plan_.tasks, end = plan_.last_block(task);
      for (std::int64_t block = plan_.first_block(task); block < end && !stop.requested(); ++block)
        attend_rows({p_, head, block * plan_.block_rows, plan_.block_rows}, stop);
    });
  }

 private:
  key_interval all_keys() const { return {0, p_.n_keys}; }

  void* output_rows(std::int64_t head, std::int64_t row) const {
    return row_at(p_.heads[head].output, p_.output, row);
  }

  void attend_rows(const query_block& rows, const stop_signal& stop) const {
    void* output = output_rows(rows.head, rows.first);
    if (!traits_.from_all_scores) {
      row_sums sums;
      attend(rows, all_keys(), output, p_.output, {.wanted = wanted_, .sums = &sums}, stop);
      return write(rows, sums);
    }
    row_report report;
    row_report* const wanted = p_.statistics.any() ? &report : nullptr;
    attend(rows, all_keys(), output, p_.output, {.wanted = wanted_, .report = wanted}, stop);
    if (wanted) write_statistics(p_, rows, report);
  }

  /// Statistics of a block from its sums over all keys; a sink is one more outcome.
  void write(const query_block& rows, row_sums& sums) const {
    double sink[max_block_rows] = {};
    for (int r = 0; r < rows.count; ++r)
      if (const double* score = sink_of(p_, rows, r)) sink[r] = add_sink(sums, r, *score);
    write_statistics(p_, rows, sums, sink);
  }

  /// output: null, or rows of this layout.
  void attend(const query_block& rows, key_interval keys, void* output, const matrix_layout& layout,
              const block_sums& sums, const stop_signal& stop) const {
    attend_block block = attend_block_of(p_, rows, keys,
                                         {.value = {p_.heads[rows.head].value, p_.value},
                                          .value_dim = output ? p_.value_dim : 0,
                                          .output = output,
                                          .output_layout = layout},
                                         sums, stop);
    // Leave the sink out of each part of the keys: merge() adds it.
    if (plan_.splits > 1) block.number = nullptr;
    block.scratch = thread_scratch(kernels_.scratch(block));
    kernels_.run(block);
  }

  /// Attends each (head, block, split) on its own; then merges each block's splits in the order of
  /// the keys.
  void run_split(std::int64_t heads) {
    const std::int64_t parts = heads * plan_.blocks * plan_.splits;
    const std::int64_t part_values = plan_.block_rows * p_.value_dim;
    const bool wide = p_.compute == element_type::float64;
    const auto sums = std::make_unique<row_sums[]>(static_cast<std::size_t>(parts));
    aligned_buffer outputs(static_cast<std::size_t>(parts * part_values) *
                           (wide ? sizeof(double) : sizeof(float)));
    const matrix_layout layout{p_.compute, static_cast<std::ptrdiff_t>(p_.value_dim), 1};
    parallel_for(parts, how_, [&](std::int64_t part, const stop_signal& stop) {
      const std::int64_t task = part / plan_.splits, split = part % plan_.splits;
      const std::int64_t head = task / plan_.blocks;
      const query_block rows(p_, head, task % plan_.blocks * plan_.block_rows, plan_.block_rows);
      void* output = p_.heads[head].output
                         ? row_at(outputs.data(), {p_.compute, 1, 1}, part * part_values)
                         : nullptr;
      attend(rows, {p_.n_keys * split / plan_.splits, p_.n_keys * (split + 1) / plan_.splits},
             output, layout, {.wanted = wanted_, .sums = &sums[part]}, stop);
    });
    for (std::int64_t task = 0; task < heads * plan_.blocks; ++task) {
      const std::int64_t first = task * plan_.splits;
      const query_block rows(p_, task / plan_.blocks, task % plan_.blocks * plan_.block_rows,
                             plan_.block_rows);
      if (wide)
        merge(rows, &sums[first], static_cast<double*>(outputs.data()) + first * part_values);
      else
        merge(rows, &sums[first], static_cast<float*>(outputs.data()) + first * part_values);
    }
  }

  template <class T>
  void merge(const query_block& rows, const row_sums* parts, const T* outputs) const {
    row_sums total;
    std::vector<double> share(static_cast<std::size_t>(plan_.splits));
    for (int r = 0; r < rows.count; ++r) {
      merge_sums(parts, plan_.splits, r, total, share.data());
      void* out = output_rows(rows.head, rows.first + r);
      if (!out) continue;
      const double of_keys = share_of_keys(total, r, sink_of(p_, rows, r));
      for (std::int64_t c = 0; c < p_.value_dim; ++c) {
        double sum = 0;
        // Add parts with weight 0, too: a visible NaN or infinity has to show.
        for (std::int64_t s = 0; s < plan_.splits; ++s)
          sum += share[s] * outputs[(s * plan_.block_rows + r) * p_.value_dim + c];
        write_value(out, p_.output.type, c * p_.output.column, sum * of_keys);
      }
    }
    write(rows, total);
  }

  const attention_problem& p_;
  execution how_;
  const attend_kernels& kernels_;
  const normalizer_traits& traits_;
  task_plan plan_;
  int wanted_ = sums_for(p_);
};

void run_in_range(const attention_problem& problem, const execution& how) {
  const execution shared = one_thread_if_short(how, forward_nanoseconds(problem));
  const auto heads = static_cast<std::int64_t>(problem.heads.size());
  const int threads = shared.num_threads > 0 ? shared.num_threads : num_threads();
  const auto rows = heads_as_rows(problem, static_cast<std::size_t>(threads));
  attention_run(rows ? *rows : problem, shared, heads)();
  const auto count = [&](statistic which) {
    if (void* counts = problem.statistics[which])
      count_visible(problem, static_cast<std::int64_t*>(counts), how);
  };
  count(statistic::n_visible);
  if (traits_of(problem.rule).every_key) count(statistic::support);
}

}  // namespace

void run(const attention_problem& problem, const execution& how) {
  check_scales(problem);
  check_leading_keys(problem);
  query_rescaling rescaling(problem);
  if (!rescaling.needed()) return run_in_range(problem, how);
  attention_problem own = problem;
  rescaling.apply(own);
  run_in_range(own, how);
}

}  // namespace attnscale
