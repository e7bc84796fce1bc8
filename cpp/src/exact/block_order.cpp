// SPDX-License-Identifier: BSD-3-Clause
#include "exact/block_order.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <unordered_map>

#if !defined(__wasm__)
#include <thread>
#endif

namespace attnscale::detail {
namespace {

/// Heads that share gradients, directly or through others; the first of them represents all.
class joined_heads {
 public:
  explicit joined_heads(std::size_t heads) : first_(heads) {
    std::iota(first_.begin(), first_.end(), std::size_t{0});
  }
  std::size_t first(std::size_t head) {
    while (first_[head] != head) head = first_[head] = first_[first_[head]];
    return head;
  }
  void join(std::size_t a, std::size_t b) {
    const std::size_t x = first(a), y = first(b);
    first_[std::max(x, y)] = std::min(x, y);
  }

 private:
  std::vector<std::size_t> first_;
};

/// Joins the heads whose gradients of one kind are the same array.
template <class Find>
void join_equal(const gradient_problem& problem, joined_heads& joined, Find find) {
  std::unordered_map<const void*, std::size_t> seen;
  for (std::size_t h = 0; h < problem.gradients.size(); ++h) {
    const void* array = find(problem.gradients[h]);
    if (!array) continue;
    const auto [found, is_new] = seen.emplace(array, h);
    if (!is_new) joined.join(found->second, h);
  }
}

/// A long wait means that the other thread has no core: yield this one.
void rest_for_a_moment([[maybe_unused]] std::int64_t round) {
#if !defined(__wasm__)  // where one thread alone takes the blocks in order, and never waits
  if (round % 64 == 63 && round > 4096)
    return std::this_thread::sleep_for(std::chrono::microseconds(20));
  if (round % 64 == 63) return std::this_thread::yield();
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
#endif
}

}  // namespace

block_order::block_order(const gradient_problem& problem, std::int64_t blocks)
    : blocks_(blocks), shares_query_(problem.heads.size()) {
  const std::size_t heads = problem.heads.size();
  joined_heads joined(heads);
  join_equal(problem, joined, [](const gradient_head& to) { return to.key; });
  join_equal(problem, joined, [](const gradient_head& to) { return to.value; });
  join_equal(problem, joined, [](const gradient_head& to) { return to.query; });
  join_equal(problem, joined, [](const gradient_head& to) { return to.attn_mask; });
  join_equal(problem, joined, [](const gradient_head& to) { return to.tables.distance_scale; });
  join_equal(problem, joined, [](const gradient_head& to) { return to.tables.distance_bias; });
  std::vector<std::vector<std::int64_t>> members(heads);
  std::unordered_map<const void*, int> queries;
  for (std::size_t h = 0; h < heads; ++h) {
    members[joined.first(h)].push_back(static_cast<std::int64_t>(h));
    ++queries[problem.gradients[h].query];
  }
  for (std::size_t h = 0; h < heads; ++h)
    shares_query_[h] = problem.gradients[h].query && queries[problem.gradients[h].query] > 1;
  std::erase_if(members, [](const auto& each) { return each.empty(); });
  chains_ = std::vector<chain>(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    chains_[i].heads = std::move(members[i]);
    const auto n = static_cast<std::size_t>(length(chains_[i]));
    chains_[i].passed = std::make_unique<std::atomic<std::int64_t>[]>(n);
  }
}

std::vector<block_turn> block_order::in_order(std::int64_t side_by_side) const {
  std::vector<block_turn> order;
  const auto n = static_cast<std::int64_t>(chains_.size());
  for (std::int64_t first = 0; first < n; first += side_by_side) {
    const std::int64_t last = std::min(n, first + side_by_side);
    std::int64_t longest = 0;
    for (std::int64_t c = first; c < last; ++c)
      longest = std::max(longest, length(chains_[static_cast<std::size_t>(c)]));
    for (std::int64_t index = 0; index < longest; ++index)
      for (std::int64_t c = first; c < last; ++c)
        if (index < length(chains_[static_cast<std::size_t>(c)])) order.push_back({c, index});
  }
  return order;
}

bool block_order::wait(const block_turn& each, std::int64_t key_end, const stop_signal& stop) {
  chain& c = chains_[static_cast<std::size_t>(each.chain)];
  for (std::int64_t before = c.ended.load(std::memory_order_acquire); before < each.index; ++before)
    for (std::int64_t round = 0; c.passed[before].load(std::memory_order_acquire) < key_end;
         ++round) {
      if (stop.requested()) return false;
      rest_for_a_moment(round);
    }
  return true;
}

void block_order::pass(const block_turn& each, std::int64_t key_end) {
  chain& c = chains_[static_cast<std::size_t>(each.chain)];
  c.passed[each.index].store(key_end, std::memory_order_release);
  if (key_end != INT64_MAX) return;
  // The first thread to arrive moves `ended` over all that have ended by now.
  std::int64_t ended = c.ended.load(std::memory_order_acquire);
  while (ended < length(c) && c.passed[ended].load(std::memory_order_acquire) == INT64_MAX)
    if (c.ended.compare_exchange_weak(ended, ended + 1, std::memory_order_acq_rel)) ++ended;
}

}  // namespace attnscale::detail
