// SPDX-License-Identifier: BSD-3-Clause
//
// run(linear_problem): heads, or the chunks of a long one, become tasks. A chunk's own sums do not
// depend on earlier chunks, and merge in the order of the keys: results have the same bits for one
// thread per head and for many.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "machine/thread_pool.hpp"
#include "variants/linear_walk.hpp"

#if !defined(__wasm__)
#include <thread>
#endif

namespace attnscale::detail {
namespace {

using heads_list = std::vector<const linear_head*>;

/// Minimum number of elements in a task's rows: fewer are not worth another thread.
constexpr std::int64_t least_task = std::int64_t{1} << 15;

/// Time to sum a chunk's keys, over the time to answer its queries as well.
constexpr double share_of_sums = 1.0 / 3;

/// Loop over all heads that writes outputs, or the sums that they keep.
class output_walk : linear_walk {
 public:
  output_walk(const linear_problem& p, const linear_form& form, bool wide, bool watched)
      : linear_walk(p, form, wide, watched), p_(p) {}

  /// Returns the heads that need a wider type.
  heads_list run(heads_list heads, const execution& how) {
    ranges_.assign(heads.size(), unseen());
    make_groups(heads);
    const std::int64_t threads = asked_threads(how);
    const auto groups = static_cast<std::int64_t>(groups_.size()) - 1;
    const std::int64_t longest = std::max(p_.n_queries, p_.n_keys);
    if (groups < threads && longest > 2 * least_chunk) {
      for (std::int64_t g = 0; g < groups; ++g) divided(group(heads, g), how);
    } else {
      const std::int64_t size = (p_.n_queries + p_.n_keys) * (form_.features + form_.value_dim);
      const std::int64_t of_task = 1 + least_task / std::max<std::int64_t>(size, 1);
      parallel_for((groups + of_task - 1) / of_task, how,
                   [&](std::int64_t task, const stop_signal& stop) {
                     const std::int64_t end = std::min(groups, (task + 1) * of_task);
                     for (std::int64_t g = task * of_task; g < end; ++g)
                       whole(group(heads, g), stop);
                   });
    }
    heads_list unsafe;
    for (std::size_t i = 0; i < heads.size(); ++i)
      if (wants_wider(ranges_[i])) unsafe.push_back(heads[i]);
    return unsafe;
  }

 private:
  /// Heads that share keys, which are summed once.
  struct group_of_heads {
    const linear_head* const* heads;
    linear_range* ranges;
    std::size_t count;
  };

  /// Groups heads that share keys. Causal queries read sums of their own: only keys before all of
  /// them can be shared.
  void make_groups(heads_list& heads) {
    const bool shared = p_.n_queries && p_.n_keys && first_ >= pairs_;
    const auto keys_of = [](const linear_head* h) { return std::pair(h->key, h->value); };
    // Heads with the same keys stay in order: std::stable_sort of libstdc++ 12 calls a function
    // that C++17 deprecates, which clang++ reports in headers, too.
    if (shared)
      std::sort(heads.begin(), heads.end(), [&](const linear_head* a, const linear_head* b) {
        return std::pair(keys_of(a), a) < std::pair(keys_of(b), b);
      });
    groups_.assign(1, 0);
    for (std::size_t i = 1; i < heads.size(); ++i)
      if (!shared || keys_of(heads[i]) != keys_of(heads[i - 1])) groups_.push_back(i);
    groups_.push_back(heads.size());
  }

  group_of_heads group(const heads_list& heads, std::int64_t index) {
    const std::size_t g = static_cast<std::size_t>(index), begin = groups_[g];
    return {heads.data() + begin, ranges_.data() + begin, groups_[g + 1] - begin};
  }

  // ---- kernel calls ----------------------------------------------------------------------------

  linear_block block_of(std::int64_t rows, linear_range& range, const stop_signal& stop) const {
    return block<linear_block>(kernels_.linear, range, stop, rows);
  }

  void give_outputs(linear_block& b, const linear_head& head, std::int64_t row) const {
    give_queries(b, head, row);
    b.out = row_at(head.output, p_.output, row);
    b.out_layout = p_.output;
  }

  /// Outputs of queries that see exactly the keys of `sums`.
  void read(const linear_head& head, std::int64_t begin, std::int64_t end, key_sums& sums,
            linear_range& range, const stop_signal& stop) const {
    linear_block b = block_of(end - begin, range, stop);
    give_outputs(b, head, begin);
    b.base = sums.base();
    b.count = sums.count;
    kernels_.linear.run(b);
  }

  /// Queries of the chunks [from, to) of pairs, with their keys, which are added to `sums`.
  void step(const linear_head& head, std::int64_t from, std::int64_t to, key_sums& sums,
            linear_range& range, const stop_signal& stop) const {
    key_sums own(form_);
    for (std::int64_t i = from; i < to && !stop.requested(); ++i) {
      const auto [begin, end] = chunk(i, pairs_);
      own.clear();
      linear_block b = block_of(end - begin, range, stop);
      give_outputs(b, head, skipped_ + begin);
      give_keys(b, head, first_ + begin);
      b.base = sums.base();
      b.own = own.view();
      b.count = sums.count;
      kernels_.linear.run(b);
      sums.add(own.view(), end - begin, fade(head, first_ + begin, first_ + end));
    }
  }

  void write_zeros(const linear_head& head, std::int64_t begin, std::int64_t end) const {
    zero_rows(head.output, p_.output, begin, end, form_.value_dim);
  }

  /// Sums held by a state.
  key_sums kept(const linear_head& head) const {
    key_sums sums(form_);
    if (head.sums.products && p_.n_summed) sums.add(head.sums, p_.n_summed);
    return sums;
  }

  /// Writes the sums to a state, only if they are in range.
  void keep(const linear_head& head, key_sums& sums, linear_range& range) const {
    const linear_sums all = sums.view();
    double sum = 0;
    for (std::int64_t i = 0; i < form_.features * (form_.value_dim + 1); ++i)
      sum += 0 * all.total[i];
    range.overflow = range.overflow || sum != 0;
    if (wants_wider(range)) return;
    key_sums::merge(head.sums, all, form_.features, form_.value_dim, fade(head, 0, p_.n_keys));
  }

  // ---- a group by one thread -------------------------------------------------------------------

  void whole(const group_of_heads& g, const stop_signal& stop) const {
    const linear_head& any = *g.heads[0];
    linear_range range = unseen();
    key_sums sums = kept(any), own(form_);
    for (std::int64_t i = 0; i < n_chunks(first_) && !stop.requested(); ++i) {
      const auto [begin, end] = chunk(i, first_);
      own.clear();
      sum_keys(any, begin, end, own, range, stop);
      sums.add(own.view(), end - begin, fade(any, begin, end));
    }
    for (std::size_t i = 0; i < g.count; ++i) {
      g.ranges[i] = range;
      const linear_head& head = *g.heads[i];
      if (!p_.n_queries) {
        if (!stop.requested()) keep(head, sums, g.ranges[i]);
        continue;
      }
      write_zeros(head, 0, skipped_);
      key_sums all = pairs_ ? sums : key_sums(form_);
      if (pairs_) step(head, 0, n_chunks(pairs_), all, g.ranges[i], stop);
      answer_rest(head, pairs_ ? all : sums, g.ranges[i], stop);
    }
  }

  /// Outputs of the queries that see all keys.
  void answer_rest(const linear_head& head, key_sums& sums, linear_range& range,
                   const stop_signal& stop) const {
    const std::int64_t begin = skipped_ + pairs_;
    if (begin == p_.n_queries || stop.requested()) return;
    if (sums.count)
      read(head, begin, p_.n_queries, sums, range, stop);
    else
      write_zeros(head, begin, p_.n_queries);
  }

  // ---- a group by all threads ------------------------------------------------------------------

  void divided(const group_of_heads& g, const execution& how) {
    const linear_head& any = *g.heads[0];
    key_sums sums = kept(any);
    linear_range range = unseen();
    std::vector<key_sums> own(static_cast<std::size_t>(n_chunks(first_)), key_sums(form_));
    parallel_for(n_chunks(first_), how, [&](std::int64_t i, const stop_signal& stop) {
      linear_range seen = unseen();
      const auto [begin, end] = chunk(i, first_);
      sum_keys(any, begin, end, own[static_cast<std::size_t>(i)], seen, stop);
      note(range, seen);
    });
    for (std::size_t i = 0; i < own.size(); ++i) {
      const auto [begin, end] = chunk(static_cast<std::int64_t>(i), first_);
      sums.add(own[i].view(), own[i].count, fade(any, begin, end));
    }
    own.clear();
    for (std::size_t i = 0; i < g.count; ++i) {
      g.ranges[i] = range;
      if (!p_.n_queries) {
        keep(*g.heads[i], sums, g.ranges[i]);
        continue;
      }
      write_zeros(*g.heads[i], 0, skipped_);
      key_sums all = pairs_ ? sums : key_sums(form_);
      if (pairs_) divided_steps(*g.heads[i], all, g.ranges[i], how);
      divided_rest(*g.heads[i], pairs_ ? all : sums, g.ranges[i], how);
    }
  }

  void divided_rest(const linear_head& head, key_sums& sums, linear_range& range,
                    const execution& how) {
    const std::int64_t begin = skipped_ + pairs_, rows = p_.n_queries - begin;
    if (!sums.count) return write_zeros(head, begin, p_.n_queries);
    parallel_for(n_chunks(rows), how, [&](std::int64_t i, const stop_signal& stop) {
      linear_range seen = unseen();
      const auto [from, to] = chunk(i, rows);
      read(head, begin + from, begin + to, sums, seen, stop);
      note(range, seen);
    });
  }

  /// The first task answers queries at once, while the others sum the keys of all parts but the
  /// last; each then starts from the sums of all earlier chunks.
  void divided_steps(const linear_head& head, key_sums& sums, linear_range& range,
                     const execution& how) {
    const std::vector<std::int64_t> bounds = parts(n_chunks(pairs_), how);
    const auto n_parts = static_cast<std::int64_t>(bounds.size()) - 1;
    const auto n_own = static_cast<std::size_t>(n_parts > 1 ? bounds[bounds.size() - 2] : 0);
    std::vector<key_sums> own(n_own, key_sums(form_));
    const auto done = std::make_unique<std::atomic<bool>[]>(n_own);
    std::atomic<std::size_t> next{0};
    key_sums last(form_);
    parallel_for(n_parts, how, [&](std::int64_t part, const stop_signal& stop) {
      linear_range seen = unseen();
      for (std::size_t i; part && (i = next.fetch_add(1)) < n_own && !stop.requested();) {
        const auto [begin, end] = chunk(static_cast<std::int64_t>(i), pairs_);
        sum_keys(head, first_ + begin, first_ + end, own[i], seen, stop);
        done[i].store(true, std::memory_order_release);
      }
      const auto p = static_cast<std::size_t>(part);
      key_sums before = sums;
      for (std::size_t i = 0; i < static_cast<std::size_t>(bounds[p]); ++i) {
        // Another thread is already working on it: a thread never waits for a task that has not
        // begun.
        while (!done[i].load(std::memory_order_acquire)) {
          if (stop.requested()) return;
#if !defined(__wasm__)  // where one thread alone has all parts
          std::this_thread::yield();
#endif
        }
        const auto [begin, end] = chunk(static_cast<std::int64_t>(i), pairs_);
        before.add(own[i].view(), own[i].count, fade(head, first_ + begin, first_ + end));
      }
      step(head, bounds[p], bounds[p + 1], before, seen, stop);
      note(range, seen);
      if (part == n_parts - 1) last = std::move(before);
    });
    sums = std::move(last);
  }

  /// Bounds of the parts of a causal sequence: all end together if the first one is longer by what
  /// the other threads sum meanwhile.
  static std::vector<std::int64_t> parts(std::int64_t chunks, const execution& how) {
    const std::int64_t n = std::min<std::int64_t>(asked_threads(how), chunks / 2);
    if (n < 2) return {0, chunks};
    const auto count = static_cast<double>(n), all = static_cast<double>(chunks);
    const double extra = share_of_sums / (count - 1), share = (1 - extra) / (count - extra);
    std::vector<std::int64_t> bounds{0};
    for (std::int64_t left = n - 1; left > 0; --left)
      bounds.push_back(std::lround(all * (1 - share * static_cast<double>(left))));
    bounds.push_back(chunks);
    return bounds;
  }

  const linear_problem& p_;
  std::vector<std::size_t> groups_;
  std::vector<linear_range> ranges_;
};

bool holds_double(const linear_problem& p) {
  const auto is_wide = [](const void* data, const matrix_layout& layout) {
    return data && layout.type == element_type::float64;
  };
  const linear_head& h = p.heads.front();
  return is_wide(h.query, p.query) || is_wide(h.key, p.key) || is_wide(h.value, p.value);
}

}  // namespace

void run(const linear_problem& p, const execution& how) {
  if (p.heads.empty()) return;
  if (!p.n_queries && (!p.n_keys || !p.heads.front().sums.products)) return;
  // Earlier sums were not range-checked, so use double.
  const linear_head& any = p.heads.front();
  const bool goes_on = any.query && any.sums.products && p.n_summed;
  run_in_types<output_walk>(p, holds_double(p) || !any.key || goes_on, how);
}

}  // namespace attnscale::detail
