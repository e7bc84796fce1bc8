// SPDX-License-Identifier: BSD-3-Clause
//
// run(linear_gradient_problem): three passes over the chunks of some heads at a time. The first
// sums the keys of each chunk, the second answers queries, the third keys; in between the sums of
// chunks merge in the order of the keys, then in reverse order of the queries. A chunk's own sums
// do not depend on other chunks: results have the same bits for any number of threads.
#include "kernels/linear/linear_gradient.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "attnscale/detail/linear_problem.hpp"
#include "machine/scratch.hpp"
#include "machine/thread_pool.hpp"
#include "variants/linear_walk.hpp"

namespace attnscale::detail {
namespace {

using gradient_heads = std::vector<const linear_gradient_head*>;

/// Minimum number of rows per task: with fewer, more heads are processed at a time.
constexpr std::int64_t least_rows = 4096;

/// Queries per note, if notes are not read after their strip.
constexpr std::int64_t note_rows = 64;

/// Notes of `rows` queries.
class notes_memory {
 public:
  notes_memory(const linear_form& form, bool wide, std::int64_t rows, bool paired)
      : columns_(whole(form.features)),
        lanes_(whole(form.value_dim)),
        features_(form.features),
        size_(wide ? 8 : 4),
        channels_(form.norm == linear_norm::channels),
        weights_(bytes(rows * columns_)),
        means_(bytes(rows * (channels_ ? columns_ : 1))),
        references_(bytes(paired && form.map >= feature_map::exponential ? rows * columns_ : 0)),
        sums_(bytes(paired && form.norm == linear_norm::none
                        ? (rows / note_rows + most_chunks) * features_ * lanes_
                        : 0)),
        strips_(static_cast<std::size_t>(rows + 2 * most_chunks)) {}

  /// Notes of the rows from `row` on, which begin the chunk `index`.
  gradient_notes at(std::int64_t row, std::int64_t index) {
    const auto place = [&](aligned_buffer& memory, std::int64_t elements) -> void* {
      return memory.data() ? static_cast<char*>(memory.data()) + bytes(elements) : nullptr;
    };
    return {place(weights_, row * columns_),
            place(means_, row * (channels_ ? columns_ : 1)),
            place(references_, row * columns_),
            place(sums_, (row / note_rows + index) * features_ * lanes_),
            strips_.data() + row + index,
            columns_,
            lanes_};
  }

 private:
  static std::int64_t whole(std::int64_t n) { return (n + 15) / 16 * 16; }
  std::size_t bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * size_;
  }

  std::int64_t columns_, lanes_, features_;
  std::size_t size_;
  bool channels_;
  aligned_buffer weights_, means_, references_, sums_;
  std::vector<std::int64_t> strips_;
};

/// Adds earlier sums over queries, which are taken from the last query on: `into` decays and is
/// rescaled to the references of `earlier`, which are at most its own.
void take_earlier(key_sums& into, key_sums& earlier, const linear_form& form, double fade) {
  const linear_sums to = into.view(), from = earlier.view();
  for (std::int64_t f = 0; f < form.features; ++f) {
    const double here = from.reference[f], there = to.reference[f];
    const double by = into.count == 0 || here == there ? fade : fade * std::exp(here - there);
    to.reference[f] = here;
    to.total[f] = to.total[f] * by + from.total[f];
    for (std::int64_t c = f * form.value_dim; c < (f + 1) * form.value_dim; ++c)
      to.products[c] = to.products[c] * by + from.products[c];
  }
  into.count += earlier.count;
}

/// A head in progress.
struct head_work {
  const linear_gradient_head* head;
  linear_range range;
  std::vector<key_sums> first, pairs, rest;  ///< per chunk: keys, keys then queries, queries
  std::vector<key_sums> before, after;       ///< read by chunks of pairs
  key_sums all;                              ///< over all chunks: keys, then queries
};

/// Loop over all heads that writes gradients.
class gradient_walk : linear_walk {
 public:
  gradient_walk(const linear_gradient_problem& p, const linear_form& form, bool wide, bool watched)
      : linear_walk(p, form, wide, watched), p_(p), rest_(p.n_queries - skipped_ - pairs_) {
    // Queries that see no keys.
    if (first_ + pairs_ == 0) skipped_ = p.n_queries, rest_ = 0;
  }

  /// Returns the heads that need a wider type.
  gradient_heads run(const gradient_heads& heads, const execution& how) {
    const std::int64_t threads = asked_threads(how);
    const std::int64_t rows = std::max<std::int64_t>(p_.n_queries + p_.n_keys, 1);
    const auto batch =
        static_cast<std::size_t>(threads * std::max<std::int64_t>(1, least_rows / rows));
    const std::size_t slots = std::min(batch, heads.size());
    for (std::size_t i = 0; i < slots && pairs_; ++i)
      notes_.push_back(std::make_unique<notes_memory>(form_, wide_, pairs_, true));
    gradient_heads unsafe;
    for (std::size_t at = 0; at < heads.size(); at += batch) {
      std::vector<head_work> works;
      for (std::size_t i = at; i < std::min(at + batch, heads.size()); ++i)
        works.push_back(begin(heads[i]));
      passes(works, how);
      for (const head_work& each : works)
        if (wants_wider(each.range)) unsafe.push_back(each.head);
    }
    return unsafe;
  }

 private:
  head_work begin(const linear_gradient_head* head) const {
    const auto sums = [&](std::int64_t chunks) {
      return std::vector<key_sums>(static_cast<std::size_t>(chunks), key_sums(form_));
    };
    return {head,
            unseen(),
            sums(n_chunks(first_)),
            sums(n_chunks(pairs_)),
            sums(n_chunks(rest_)),
            sums(n_chunks(pairs_)),
            sums(n_chunks(pairs_)),
            key_sums(form_)};
  }

  /// Calls task(work, slot, index) for `chunks` chunks of every head.
  template <class F>
  void for_chunks(std::vector<head_work>& works, std::int64_t chunks, const execution& how,
                  F&& task) {
    const auto heads = static_cast<std::int64_t>(works.size());
    parallel_for(heads * chunks, how, [&](std::int64_t i, const stop_signal& stop) {
      const auto slot = static_cast<std::size_t>(i / chunks);
      linear_range seen = unseen();
      task(works[slot], slot, i % chunks, seen, stop);
      note(works[slot].range, seen);
    });
  }

  void passes(std::vector<head_work>& works, const execution& how) {
    const std::int64_t a = n_chunks(first_), b = n_chunks(pairs_), c = n_chunks(rest_);
    using index = std::int64_t;
    // The last chunk's keys are read by its own queries, and by those that see all keys.
    for_chunks(
        works, a + (c ? b : std::max<index>(b - 1, 0)), how,
        [&](head_work& w, std::size_t, index i, linear_range& seen, const stop_signal& stop) {
          if (i < a) return sum_chunk(w, i, 0, first_, w.first, seen, stop);
          sum_chunk(w, i - a, first_, pairs_, w.pairs, seen, stop);
        });
    for_chunks(works, 1, how,
               [&](head_work& w, std::size_t, index, auto&, auto&) { merge_keys(w); });
    for_chunks(
        works, b + c, how,
        [&](head_work& w, std::size_t slot, index i, linear_range& seen, const stop_signal& stop) {
          if (i < b) return queries_of_pairs(w, slot, i, seen, stop);
          queries_of_rest(w, i - b, seen, stop);
        });
    for_chunks(works, 1, how,
               [&](head_work& w, std::size_t, index, auto&, auto&) { merge_queries(w); });
    for_chunks(
        works, b + a, how,
        [&](head_work& w, std::size_t slot, index i, linear_range& seen, const stop_signal& stop) {
          if (i < b) return keys_of_pairs(w, slot, i, seen, stop);
          keys_of_first(w, i - b, seen, stop);
        });
    for (const head_work& w : works) write_zeros(*w.head);
  }

  // ---- kernel calls ----------------------------------------------------------------------------

  linear_gradient_block block_of(std::int64_t rows, linear_range& range,
                                 const stop_signal& stop) const {
    return block<linear_gradient_block>(kernels_.linear_gradient, range, stop, rows);
  }

  void give_query_gradients(linear_gradient_block& b, const linear_gradient_head& h,
                            std::int64_t row) const {
    give_queries(b, h, row);
    b.grad = {row_at(h.grad, p_.grad, row), p_.grad};
    b.query_out = {row_at(h.query_out, p_.query_out, row), p_.query_out};
  }

  void give_key_gradients(linear_gradient_block& b, const linear_gradient_head& h,
                          std::int64_t row) const {
    give_keys(b, h, row);
    b.key_out = {row_at(h.key_out, p_.key_out, row), p_.key_out};
    b.value_out = {row_at(h.value_out, p_.value_out, row), p_.value_out};
    if (h.decay) b.decay_out = h.decay_out + row;
  }

  /// Adds a chunk of the `rows` keys from `first` on to its sums.
  void sum_chunk(const head_work& w, std::int64_t index, std::int64_t first, std::int64_t rows,
                 std::vector<key_sums>& sums, linear_range& range, const stop_signal& stop) const {
    const auto [from, to] = chunk(index, rows);
    sum_keys(*w.head, first + from, first + to, sums[static_cast<std::size_t>(index)], range, stop);
  }

  void queries_of_pairs(head_work& w, std::size_t slot, std::int64_t index, linear_range& range,
                        const stop_signal& stop) const {
    const auto [from, to] = chunk(index, pairs_);
    const auto i = static_cast<std::size_t>(index);
    linear_gradient_block b = block_of(to - from, range, stop);
    give_query_gradients(b, *w.head, skipped_ + from);
    give_key_gradients(b, *w.head, first_ + from);
    b.notes = notes_[slot]->at(from, index);
    b.base = w.before[i].base();
    b.count = w.before[i].count;
    key_sums keys(form_);
    b.own = keys.view();
    w.pairs[i].clear();
    b.later_own = w.pairs[i].view();
    if (index == 0 && first_ == 0) b.later_own.products = nullptr;  // no earlier keys
    w.pairs[i].count = to - from;
    kernels_.linear_gradient.query_gradients(b);
  }

  void queries_of_rest(head_work& w, std::int64_t index, linear_range& range,
                       const stop_signal& stop) const {
    const auto [from, to] = chunk(index, rest_);
    notes_memory notes(form_, wide_, note_rows, false);
    linear_gradient_block b = block_of(to - from, range, stop);
    give_query_gradients(b, *w.head, skipped_ + pairs_ + from);
    b.notes = notes.at(0, 0);
    b.base = w.all.base();
    b.count = w.all.count;
    key_sums& own = w.rest[static_cast<std::size_t>(index)];
    b.later_own = own.view();
    own.count = to - from;
    kernels_.linear_gradient.query_gradients(b);
  }

  void keys_of_pairs(head_work& w, std::size_t slot, std::int64_t index, linear_range& range,
                     const stop_signal& stop) const {
    const auto [from, to] = chunk(index, pairs_);
    linear_gradient_block b = block_of(to - from, range, stop);
    give_key_gradients(b, *w.head, first_ + from);
    b.grad = {row_at(w.head->grad, p_.grad, skipped_ + from), p_.grad};
    b.notes = notes_[slot]->at(from, index);
    b.later_base = w.after[static_cast<std::size_t>(index)].base();
    key_sums own(form_);
    b.later_own = own.view();
    kernels_.linear_gradient.key_gradients(b);
  }

  void keys_of_first(head_work& w, std::int64_t index, linear_range& range,
                     const stop_signal& stop) const {
    const auto [from, to] = chunk(index, first_);
    linear_gradient_block b = block_of(to - from, range, stop);
    give_key_gradients(b, *w.head, from);
    b.later_base = w.all.base();
    kernels_.linear_gradient.key_gradients(b);
  }

  // ---- between the passes ----------------------------------------------------------------------

  /// Decay over chunk `index` of pairs.
  double fade_of(const head_work& w, std::size_t index) const {
    const auto [from, to] = chunk(static_cast<std::int64_t>(index), pairs_);
    return fade(*w.head, first_ + from, first_ + to);
  }

  void merge_keys(head_work& w) const {
    for (key_sums& each : w.first) w.all.add(each.view(), each.count);
    for (std::size_t i = 0; i < w.pairs.size(); ++i) {
      w.before[i] = w.all;
      w.all.add(w.pairs[i].view(), w.pairs[i].count, fade_of(w, i));
    }
  }

  void merge_queries(head_work& w) const {
    w.all.clear();
    for (std::size_t i = w.rest.size(); i-- > 0;) take_earlier(w.all, w.rest[i], form_, 1);
    for (std::size_t i = w.pairs.size(); i-- > 0;) {
      w.after[i] = w.all;
      take_earlier(w.all, w.pairs[i], form_, fade_of(w, i));
    }
  }

  /// Zeros the gradients of keys that no query sees, and of queries that see no key.
  void write_zeros(const linear_gradient_head& h) const {
    zero_rows(h.query_out, p_.query_out, 0, skipped_, form_.head_dim);
    const std::int64_t seen = rest_ + pairs_ ? first_ + pairs_ : 0;
    zero_rows(h.key_out, p_.key_out, seen, p_.n_keys, form_.head_dim);
    zero_rows(h.value_out, p_.value_out, seen, p_.n_keys, form_.value_dim);
  }

  const linear_gradient_problem& p_;
  std::int64_t rest_;  // queries that see all keys
  std::vector<std::unique_ptr<notes_memory>> notes_;
};

bool holds_double(const linear_gradient_problem& p) {
  for (const matrix_layout& each : {p.query, p.key, p.value, p.grad})
    if (each.type == element_type::float64) return true;
  return false;
}

}  // namespace

void run(const linear_gradient_problem& p, const execution& how) {
  run_in_types<gradient_walk>(p, holds_double(p), how);
}

}  // namespace attnscale::detail
