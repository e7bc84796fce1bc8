// SPDX-License-Identifier: BSD-3-Clause
//
// run(top_keys_problem): tasks (head, block of queries, range of keys), whose lists are merged in
// the order of the keys and sorted. Scores do not depend on the tasks, so results do not, either.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <vector>

#include "attnscale/problem.hpp"
#include "exact/blocks.hpp"
#include "exact/query_rescaling.hpp"
#include "kernels/numbers.hpp"
#include "kernels/tile/block.hpp"
#include "machine/dispatch.hpp"
#include "machine/scratch.hpp"
#include "machine/thread_pool.hpp"

namespace attnscale {
namespace {

using namespace detail;

/// Keys of a range, at least.
constexpr std::int64_t least_range = 8192;

/// Tasks of each thread, if there are as many ranges of keys.
constexpr std::int64_t tasks_per_thread = 4;

/// Memory for the lists of a block.
constexpr std::int64_t list_bytes = std::int64_t{4} << 20;

/// A key and its score.
struct scored_key {
  double score;
  std::int64_t key;

  /// Whether it comes before another: by decreasing score, then by key.
  bool operator<(const scored_key& other) const {
    return score > other.score || (score == other.score && key < other.key);
  }
};

class top_keys_run {
 public:
  top_keys_run(const top_keys_problem& problem, const execution& how)
      : p_(problem), how_(how), kernels_(active_kernels().top_keys) {
    // Lists hold keys in 32 bits: only a broadcast array can have more keys than that in memory.
    if (p_.n_keys > UINT32_MAX) throw std::bad_alloc();
    const auto heads = static_cast<std::int64_t>(p_.heads.size());
    constexpr std::int64_t item = sizeof(double) + sizeof(std::uint32_t);
    const std::int64_t row_bytes =
        item * std::max<std::int64_t>(1, kernels_.capacity(p_.k, p_.n_keys));
    block_rows_ = std::clamp<std::int64_t>(list_bytes / row_bytes, 1, kernels_.block_rows);
    blocks_ = blocks_of(p_.n_queries, block_rows_);
    tasks_ = heads * blocks_;
    const std::int64_t wanted =
        tasks_per_thread * asked_threads(how_) / std::max<std::int64_t>(1, tasks_);
    ranges_ =
        std::clamp<std::int64_t>(p_.n_keys / least_range, 1, std::max<std::int64_t>(1, wanted));
  }

  void operator()() {
    if (ranges_ > 1) return run_ranges();
    parallel_for(tasks_, how_, [&](std::int64_t task, const stop_signal& stop) {
      const query_block rows = rows_of(task);
      list(rows, {0, p_.n_keys}, stop, [&](int r, const key_list& keys) { write(rows, r, keys); });
    });
  }

 private:
  query_block rows_of(std::int64_t task) const {
    return {p_, task / blocks_, task % blocks_ * block_rows_, block_rows_};
  }

  /// Calls take(r, list) for each row of a block over a range of keys.
  template <class Take>
  void list(const query_block& rows, key_interval keys, const stop_signal& stop,
            Take&& take) const {
    key_list lists[max_block_rows];
    const attend_block scores{scores_of(p_, rows, keys, stop), scales_of(p_, rows), {}, {}, {}};
    top_keys_block block{
        scores, {.k = std::min(p_.k, std::max<std::int64_t>(1, p_.n_keys)), .lists = lists}};
    block.unit = 1;
    block.scratch = thread_scratch(kernels_.scratch(block));
    kernels_.run(block);
    for (int r = 0; r < rows.count && !stop.requested(); ++r) take(r, lists[r]);
  }

  static void append(const key_list& keys, std::int64_t first, std::vector<scored_key>& found) {
    for (std::int64_t i = 0; i < keys.count; ++i)
      found.push_back({keys.score[i], first + static_cast<std::int64_t>(keys.key[i])});
  }

  /// Writes key number i of a row.
  void write(std::int64_t row, std::int64_t i, const scored_key& found) const {
    p_.index[row * p_.k + i] = found.key;
    p_.score[row * p_.k + i] = found.score;
  }

  /// Writes a row without the keys from number `count` on.
  void write_absent(std::int64_t row, std::int64_t count) const {
    for (std::int64_t i = count; i < p_.k; ++i) write(row, i, {-infinity, -1});
  }

  /// Sorts the candidates of a row and writes the first k.
  void write(std::int64_t row, std::vector<scored_key>& found) const {
    const std::int64_t count = std::min(p_.k, static_cast<std::int64_t>(found.size()));
    if (static_cast<std::int64_t>(found.size()) > count)
      std::nth_element(found.begin(), found.begin() + count, found.end());
    std::sort(found.begin(), found.begin() + count);
    for (std::int64_t i = 0; i < count; ++i) write(row, i, found[static_cast<std::size_t>(i)]);
    write_absent(row, count);
  }

  /// Writes a row from the list of all of its keys.
  void write(const query_block& rows, int r, const key_list& keys) const {
    const std::int64_t row = rows.head * p_.n_queries + rows.first + r;
    if (!keys.sorted) {
      std::vector<scored_key> found;
      append(keys, 0, found);
      return write(row, found);
    }
    for (std::int64_t i = 0; i < keys.count; ++i) write(row, i, {keys.score[i], keys.key[i]});
    write_absent(row, keys.count);
  }

  /// Lists each range of the keys of each block on its own, then merges them.
  void run_ranges() const {
    std::vector<std::vector<scored_key>> parts(
        static_cast<std::size_t>(tasks_ * ranges_ * block_rows_));
    parallel_for(tasks_ * ranges_, how_, [&](std::int64_t part, const stop_signal& stop) {
      const std::int64_t range = part % ranges_, first = p_.n_keys * range / ranges_;
      list(rows_of(part / ranges_), {first, p_.n_keys * (range + 1) / ranges_}, stop,
           [&](int r, const key_list& keys) {
             append(keys, first, parts[static_cast<std::size_t>(part * block_rows_ + r)]);
           });
    });
    parallel_for(tasks_, how_, [&](std::int64_t task, const stop_signal&) {
      const query_block rows = rows_of(task);
      for (int r = 0; r < rows.count; ++r) {
        std::vector<scored_key> all;
        for (std::int64_t range = 0; range < ranges_; ++range) {
          const auto& part =
              parts[static_cast<std::size_t>((task * ranges_ + range) * block_rows_ + r)];
          all.insert(all.end(), part.begin(), part.end());
        }
        write(rows.head * p_.n_queries + rows.first + r, all);
      }
    });
  }

  const top_keys_problem& p_;
  execution how_;
  const top_keys_kernels& kernels_;
  std::int64_t block_rows_, blocks_, tasks_, ranges_;
};

}  // namespace

void run(const top_keys_problem& problem, const execution& how) {
  check_scales(problem);
  top_keys_problem own = problem;
  own.compute = element_type::float64;
  query_rescaling rescaling(own);
  if (rescaling.needed()) rescaling.apply(own);
  top_keys_run(own, how)();
}

}  // namespace attnscale
