// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "kernels/gradient/block.hpp"
#include "kernels/tile/block.hpp"

namespace attnscale::detail {

/// The supports of consecutive rows, as kernels hand them out, as far as there is room.
class row_supports {
 public:
  /// For rows of at most `keys` keys.
  void start(std::int64_t keys) {
    room_ = std::max(usual_room, keys);
    no_memory_ = false;
    clear();
  }

  /// How many rows there are.
  int rows() const { return rows_; }
  void clear() {
    rows_ = 0;
    key_.clear();
    weight_.clear();
  }
  /// Of the memory, what is more than usual.
  void shrink() {
    clear();
    if (room_ > usual_room) key_.shrink_to_fit(), weight_.shrink_to_fit();
  }

  /// Before a kernel hands out `count` more rows, and after that: false if some had no room. Those
  /// before the first of them are kept.
  void begin(int count) { std::fill_n(begin_ + rows_, count, std::int64_t{-1}); }
  bool end(int count) {
    if (no_memory_) throw std::bad_alloc();
    const int last = rows_ + count;
    while (rows_ < last && begin_[rows_] >= 0) ++rows_;
    return rows_ == last;
  }
  support_taker taker() { return {take, this}; }

  row_lists lists() const {
    return {begin_, count_, key_.data(), weight_.data(), static_cast<std::int64_t>(key_.size())};
  }

 private:
  static void take(void* state, int row, const std::uint32_t* keys, const double* weights,
                   std::int64_t count) noexcept {
    auto& self = *static_cast<row_supports*>(state);
    const auto at = static_cast<std::int64_t>(self.key_.size());
    if (at + count > self.room_) return;
    try {
      self.key_.insert(self.key_.end(), keys, keys + count);
      self.weight_.insert(self.weight_.end(), weights, weights + count);
    } catch (const std::bad_alloc&) {
      self.no_memory_ = true;
    }
    self.begin_[self.rows_ + row] = at;
    self.count_[self.rows_ + row] = count;
  }

  static constexpr std::int64_t usual_room = std::int64_t{1} << 18;

  std::int64_t room_ = usual_room;
  int rows_ = 0;
  bool no_memory_ = false;
  std::int64_t begin_[max_gradient_rows], count_[max_gradient_rows];
  std::vector<std::uint32_t> key_;
  std::vector<double> weight_;
};

}  // namespace attnscale::detail
