// SPDX-License-Identifier: BSD-3-Clause
//
// Order in which blocks of queries add to shared gradients. Heads with a common array form one
// chain; its blocks have turns 0, 1, ..., and each processes the keys from first to last. A block
// adds to a key after all earlier blocks have passed that key, so each row is summed in a fixed
// order for any assignment to threads: a block follows the previous one at the distance of a tile.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "attnscale/problem.hpp"
#include "kernels/gradient/block.hpp"
#include "kernels/stop_signal.hpp"

namespace attnscale::detail {

/// One block of a chain.
struct block_turn {
  std::int64_t chain, index;
};

class block_order {
 public:
  block_order(const gradient_problem& problem, std::int64_t blocks);

  /// All blocks. Those of a chain ascend, so that threads that take them in this order only wait
  /// for blocks that have begun; `side_by_side` chains take turns, which lets as many threads work
  /// without waiting for each other.
  std::vector<block_turn> in_order(std::int64_t side_by_side) const;

  std::int64_t head(const block_turn& each) const {
    return chains_[each.chain].heads[each.index / blocks_];
  }
  /// Whether another head adds to the same gradient of the query.
  bool shares_query(std::int64_t head) const { return shares_query_[head]; }

  /// Waits until all earlier blocks have passed the keys below key_end; false if the call is to
  /// stop.
  bool wait(const block_turn& each, std::int64_t key_end, const stop_signal& stop);
  void pass(const block_turn& each, std::int64_t key_end);

 private:
  struct chain {
    std::vector<std::int64_t> heads;
    std::unique_ptr<std::atomic<std::int64_t>[]> passed;  // per block
    std::atomic<std::int64_t> ended{0};                   // blocks that have passed all keys
  };

  std::int64_t length(const chain& c) const {
    return static_cast<std::int64_t>(c.heads.size()) * blocks_;
  }

  std::int64_t blocks_;  // per head
  std::vector<chain> chains_;
  std::vector<bool> shares_query_;
};

/// Turn of a running block, in the form that kernels use.
struct waiting_turn {
  block_order& order;
  block_turn mine;
  const stop_signal& stop;

  turn_hooks hooks() {
    return {[](void* state, std::int64_t key_end) noexcept {
              auto& self = *static_cast<waiting_turn*>(state);
              return self.order.wait(self.mine, key_end, self.stop);
            },
            [](void* state, std::int64_t key_end) noexcept {
              auto& self = *static_cast<waiting_turn*>(state);
              self.order.pass(self.mine, key_end);
            },
            this};
  }
};

}  // namespace attnscale::detail
