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

/// Supports of consecutive rows, received from kernels as far as there is room: as lists, or as
/// panels if they have many keys.
class row_supports {
 public:
  /// Starts with rows of at most `keys` keys.
  void start(std::int64_t keys) {
    keys_ = keys;
    room_ = std::max(usual_room, keys);
    lanes_ = 0;
    no_memory_ = false;
    clear();
  }

  /// Number of rows.
  int rows() const { return rows_; }
  /// Number of rows to request next, at most `count`: as many as panels have room for, if the last
  /// rows since start() had panels. Batches depend on nothing else, so that sums over them have the
  /// same bits in every run.
  std::int64_t most(std::int64_t count) const {
    return lanes_ > 0 ? std::min(count, panel_rows() - rows_) : count;
  }
  void clear() {
    rows_ = 0;
    has_panels_ = false;
    key_.clear();
    weight_.clear();
  }
  /// Releases memory beyond the usual size.
  void shrink() {
    clear();
    if (room_ > usual_room) key_.shrink_to_fit(), weight_.shrink_to_fit();
    if (panels_.size() * sizeof(line) > 2 * sizeof(double) * usual_room) panels_ = {};
  }

  /// begin() is called before a kernel hands out `count` rows, end() after; end() is false if some
  /// had no room, and keeps the rows before the first of them.
  void begin(int count) { std::fill_n(begin_ + rows_, count, std::int64_t{-1}); }
  bool end(int count) {
    if (no_memory_) throw std::bad_alloc();
    if (!has_panels_) lanes_ = 0;
    const int last = rows_ + count;
    const std::int64_t most = has_panels_ ? std::min<std::int64_t>(last, panel_rows()) : last;
    while (rows_ < most && begin_[rows_] >= 0) ++rows_;
    return rows_ == last;
  }
  support_taker taker() { return {take, panel, this}; }

  row_lists lists() {
    return {begin_,
            count_,
            key_.data(),
            weight_.data(),
            static_cast<std::int64_t>(key_.size()),
            has_panels_ ? panels_.data() : nullptr};
  }

 private:
  struct alignas(64) line {
    std::byte bytes[64];
  };

  /// Number of rows that panels have room for: whole vectors, at least one.
  std::int64_t panel_rows() const {
    return std::max<std::int64_t>(1, room_ / std::max<std::int64_t>(1, keys_) / lanes_) * lanes_;
  }

  static void* panel(void* state, int row, int lanes, std::size_t bytes) noexcept {
    auto& self = *static_cast<row_supports*>(state);
    const int first = self.rows_ + row;
    self.lanes_ = lanes;
    if (first % lanes != 0 || first >= self.panel_rows()) return nullptr;
    const auto size = static_cast<std::size_t>(lanes * self.keys_) * bytes;
    if (!self.has_panels_ && !self.clear_panels(size)) return nullptr;
    return reinterpret_cast<std::byte*>(self.panels_.data()) +
           static_cast<std::size_t>(first / lanes) * size;
  }

  /// Allocates panels of `size` bytes, zeroed; false without enough memory.
  bool clear_panels(std::size_t size) {
    const std::int64_t rows = std::min<std::int64_t>(panel_rows(), max_gradient_rows);
    const std::size_t bytes = static_cast<std::size_t>(rows / lanes_) * size;
    try {
      panels_.clear();
      panels_.resize((bytes + sizeof(line) - 1) / sizeof(line));
    } catch (const std::bad_alloc&) {
      return false;
    }
    return has_panels_ = true;
  }

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

  std::int64_t keys_ = 0, room_ = usual_room;
  int rows_ = 0, lanes_ = 0;  ///< lanes_: per panel, 0 without panels
  bool no_memory_ = false, has_panels_ = false;
  std::int64_t begin_[max_gradient_rows], count_[max_gradient_rows];
  std::vector<std::uint32_t> key_;
  std::vector<double> weight_;
  std::vector<line> panels_;
};

}  // namespace attnscale::detail
