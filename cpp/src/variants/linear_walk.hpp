// SPDX-License-Identifier: BSD-3-Clause
//
// Code shared by the loops over heads, forward and backward: visible keys of queries, blocks for
// the kernels, and heads that need a wider type.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "attnscale/detail/linear_problem.hpp"
#include "machine/dispatch.hpp"
#include "machine/scratch.hpp"
#include "variants/linear_parts.hpp"
#include "variants/linear_sums.hpp"

#if !defined(__wasm__)
#include <mutex>
#endif

namespace attnscale::detail {

/// Heads in one compute type. `watched`: their products may leave its range, and there is a wider
/// type.
class linear_walk {
 protected:
  linear_walk(const linear_sequence& call, const linear_form& form, bool wide, bool watched)
      : form_(form),
        projection_(form_, wide),
        kernels_(active_kernels(wide ? element_type::float64 : element_type::float32)),
        wide_(wide),
        first_(call.is_causal ? std::clamp<std::int64_t>(call.offset, 0, call.n_keys)
                              : call.n_keys),
        skipped_(call.is_causal ? std::clamp<std::int64_t>(-call.offset, 0, call.n_queries) : 0),
        pairs_(std::min(call.n_queries - skipped_, call.n_keys - first_)),
        call_(call),
        watched_(watched) {}

  /// A kernel's block of `rows` rows.
  template <class Block, class Kernels>
  Block block(const Kernels& kernels, linear_range& range, const stop_signal& stop,
              std::int64_t rows) const {
    Block b{};
    b.form = &form_;
    b.rows = rows;
    b.range = watched_ ? &range : nullptr;
    b.stop = &stop;
    b.scratch = thread_scratch(kernels.scratch(form_));
    return b;
  }

  template <class Block>
  void give_queries(Block& b, const linear_inputs_of_head& head, std::int64_t row) const {
    b.query = {row_at(head.query, call_.query, row), call_.query};
    if (call_.query_turn) b.query_turn = call_.query_turn + 2 * row;
  }

  template <class Block>
  void give_keys(Block& b, const linear_inputs_of_head& head, std::int64_t row) const {
    b.key = {row_at(head.key, call_.key, row), call_.key};
    b.value = {row_at(head.value, call_.value, row), call_.value};
    if (call_.key_turn) b.key_turn = call_.key_turn + 2 * row;
    if (head.decay) b.decay = head.decay + row;
  }

  /// Adds keys [begin, end) to `own`.
  void sum_keys(const linear_inputs_of_head& head, std::int64_t begin, std::int64_t end,
                key_sums& own, linear_range& range, const stop_signal& stop) const {
    auto b = block<linear_block>(kernels_.linear, range, stop, end - begin);
    give_keys(b, head, begin);
    b.own = own.view();
    kernels_.linear.run(b);
    own.count += end - begin;
  }

  /// Decay of earlier sums over keys [begin, end).
  static double fade(const linear_inputs_of_head& head, std::int64_t begin, std::int64_t end) {
    double sum = 0;
    for (std::int64_t i = begin; head.decay && i < end; ++i) sum += head.decay[i];
    return std::exp(sum);
  }

  /// Records the ranges that a task has seen for its head.
  void note(linear_range& range, const linear_range& seen) {
#if !defined(__wasm__)  // one thread
    const std::lock_guard lock(mutex_);
#endif
    fold(range, seen);
  }

  bool wants_wider(const linear_range& range) const { return watched_ && is_unsafe(range, wide_); }

  linear_form form_;
  padded_projection projection_;
  const typed_kernels& kernels_;
  bool wide_;
  std::int64_t first_;    // keys before the first aligned pair of a query and a key
  std::int64_t skipped_;  // queries that see no keys
  std::int64_t pairs_;    // then come pairs, and queries that see all keys

 private:
  const linear_sequence& call_;
  bool watched_;
#if !defined(__wasm__)
  std::mutex mutex_;
#endif
};

/// Runs all heads in the type of the arrays, then those whose products left its range in a wider
/// one. Walk::run takes heads and returns those to run again.
template <class Walk, class Problem>
void run_in_types(const Problem& p, bool wide, const execution& how) {
  std::vector<const typename decltype(p.heads)::value_type*> heads;
  for (const auto& head : p.heads) heads.push_back(&head);
  linear_form form = p.form;
  // Without a norm there is no division by a sum that may underflow, so the type of the arrays is
  // enough.
  const bool has_wider = form.norm != linear_norm::none && (!wide || form.map == feature_map::elu);
  heads = Walk(p, form, wide, has_wider).run(std::move(heads), how);
  if (heads.empty()) return;
  if (form.map == feature_map::elu) form.map = feature_map::log_elu;
  Walk(p, form, true, false).run(std::move(heads), how);
}

}  // namespace attnscale::detail
