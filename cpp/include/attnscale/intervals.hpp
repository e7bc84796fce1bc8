// SPDX-License-Identifier: BSD-3-Clause
//
// Which keys each query may see: causal masks, windows and key lengths are one interval a row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "attnscale/check.hpp"
#include "attnscale/options.hpp"
#include "attnscale/problem.hpp"
#include "attnscale/strided_array.hpp"

namespace attnscale::detail {

/// What says up to which key queries see, in any of the structs of options.
template <class Options>
void check_causal(const Options& options) {
  constexpr std::int64_t most = std::int64_t{1} << 60;
  if (options.is_causal && options.causal == causal_alignment::bottom_right)
    refuse("is_causal means causal = top_left, got also causal = bottom_right");
  if (options.is_causal && options.causal == causal_alignment::offset)
    refuse("is_causal means causal = top_left, got also causal = offset");
  if (options.causal_offset < -most || options.causal_offset > most)
    refuse("causal_offset must be between -2^60 and 2^60, got " + text_of(options.causal_offset));
}

/// The intervals of a call: of all of its heads, or of each key length.
class key_intervals {
 public:
  key_intervals() = default;  ///< every key

  key_intervals(const attention_options& options, const extents& batch, std::int64_t n_queries,
                std::int64_t n_keys)
      : n_queries_(n_queries), n_keys_(n_keys), batch_(batch) {
    read_alignment(options);
    // A side that reaches beyond all keys is open: no sum of indices can then overflow.
    const std::int64_t everything = n_queries + n_keys + (offset_ < 0 ? -offset_ : offset_);
    left_ = read_side("left", options.window.left, everything);
    right_ = read_side("right", options.window.right, everything);
    if (causal_) right_ = 0;
    if (!options.key_lengths) {
      if (left_ != unbounded || right_ != unbounded) add(n_keys);
      return;
    }
    lengths_ = strided_array(options.key_lengths.values(), 0);
    check_broadcast("key_lengths", lengths_, batch, "the batch axes");
    for (const std::int64_t length : options.key_lengths.values()) {
      if (length < 0 || length > n_keys)
        refuse("key_lengths must be between 0 and the number of keys, " + text_of(n_keys) +
               ", got " + text_of(length));
      add(length);
    }
  }

  /// Index of the key that query i of the head at a leading index is aligned with, and the end of
  /// the keys that causal, window and key_lengths let it see.
  struct row_place {
    std::int64_t aligned, end;
  };
  row_place place(const extents& index, std::int64_t i) const {
    const extents batch(index.begin(), index.empty() ? index.end() : index.end() - 1);
    const auto* given = static_cast<const std::int64_t*>(lengths_.at(batch, batch_));
    const std::int64_t length = given ? *given : n_keys_;
    const std::int64_t aligned = i + first_aligned(length);
    if (right_ == unbounded) return {aligned, length};
    return {aligned, std::clamp<std::int64_t>(aligned + right_ + 1, 0, length)};
  }

  /// What the rows of all heads share.
  void describe(score_problem& problem) const {
    problem.begin_row = 1;
    problem.end_row = right_ != unbounded ? 1 : 0;
  }

  /// The rows of the head at a leading index (..., heads).
  void describe(attention_head& head, const extents& index) const {
    if (rows_.empty()) return;
    const extents batch(index.begin(), index.empty() ? index.end() : index.end() - 1);
    const auto* length = static_cast<const std::int64_t*>(lengths_.at(batch, batch_));
    const interval_ends& rows = rows_.at(length ? *length : n_keys_);
    head.begin = rows.begin.empty() ? nullptr : rows.begin.data();
    head.end = rows.end.data();
  }

 private:
  struct interval_ends {
    std::vector<std::int64_t> begin, end;
  };

  static std::int64_t read_side(const char* name, std::int64_t extent, std::int64_t everything) {
    if (extent < 0)
      refuse(std::string("window.") + name + " must be at least 0, or unbounded, got " +
             text_of(extent));
    return extent >= everything ? unbounded : extent;
  }

  void read_alignment(const attention_options& options) {
    check_causal(options);
    causal_ = options.is_causal || options.causal != causal_alignment::none;
    bottom_right_ = options.causal == causal_alignment::bottom_right;
    if (options.causal == causal_alignment::offset) offset_ = options.causal_offset;
  }

  /// Index of the key that query 0 is aligned with, where the keys end at `length`.
  std::int64_t first_aligned(std::int64_t length) const {
    return bottom_right_ ? length - n_queries_ : offset_;
  }

  /// The rows of a call whose keys end at `length`.
  void add(std::int64_t length) {
    if (rows_.count(length) != 0) return;
    interval_ends& rows = rows_[length];
    const std::int64_t offset = first_aligned(length);
    if (right_ == unbounded) rows.end.push_back(length);
    for (std::int64_t at = offset; at < offset + n_queries_; ++at) {
      if (left_ != unbounded) rows.begin.push_back(std::clamp<std::int64_t>(at - left_, 0, length));
      if (right_ != unbounded)
        rows.end.push_back(std::clamp<std::int64_t>(at + right_ + 1, 0, length));
    }
  }

  std::int64_t n_queries_ = 0, n_keys_ = 0;
  extents batch_;
  strided_array lengths_;
  bool causal_ = false, bottom_right_ = false;
  std::int64_t offset_ = 0, left_ = unbounded, right_ = unbounded;
  std::map<std::int64_t, interval_ends> rows_;  // by key length; its entries do not move
};

}  // namespace attnscale::detail
