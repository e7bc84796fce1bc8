// SPDX-License-Identifier: BSD-3-Clause
//
// Which keys each query may see: causal masks, windows and key lengths are one interval a row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "attnscale/check.hpp"
#include "attnscale/documents.hpp"
#include "attnscale/options.hpp"
#include "attnscale/problem.hpp"
#include "attnscale/strided_array.hpp"

namespace attnscale::detail {

/// What says up to which key queries see, in any of the structs of options.
template <class Options>
void check_causal(const Options& options) {
  constexpr std::int64_t most = std::int64_t{1} << 60;
  check_enumerator("causal", options.causal, causal_alignment::offset);
  if (options.is_causal && options.causal == causal_alignment::bottom_right)
    refuse("is_causal means causal = top_left, got also causal = bottom_right");
  if (options.is_causal && options.causal == causal_alignment::offset)
    refuse("is_causal means causal = top_left, got also causal = offset");
  if (options.causal_offset < -most || options.causal_offset > most)
    refuse("causal_offset must be between -2^60 and 2^60, got " + text_of(options.causal_offset));
  if (options.causal_offset != 0 && options.causal != causal_alignment::offset)
    refuse("causal_offset goes with causal = offset, got " + text_of(options.causal_offset) +
           " without it");
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
    if (options.key_lengths) read_lengths(options.key_lengths.values());
    if (options.document_ids) read_documents(options.document_ids.values());
    if (lengths_ || documents_ || left_ != unbounded || right_ != unbounded)
      for_each_index(batch_, [&](const extents& index) { add(group_of(index)); });
  }

  /// Counted from the first key of its document: the key that query i of the head at a leading
  /// index is aligned with, and the end of the keys that causal, window, key_lengths and
  /// document_ids let it see.
  struct row_place {
    std::int64_t aligned, end;
  };
  row_place place(const extents& index, std::int64_t i) const {
    const group which = group_of(batch_of(index));
    const std::int64_t aligned = i + first_aligned(which.length);
    if (rows_.empty()) return {aligned, which.length};
    const interval_ends& rows = rows_.at(which);
    const std::int64_t end = rows.end[rows.end.size() > 1 ? std::size_t(i) : 0];
    const std::int64_t origin = documents_ ? rows.origin[std::size_t(i)] : 0;
    return {aligned - origin, std::max<std::int64_t>(end - origin, 0)};
  }

  /// Position of a query less that of a key: of query i and key j at n_queries - 1 - i + j. Shape
  /// (n_distances), or (..., heads = 1, n_distances) where key lengths move the diagonal.
  dense_array<std::int64_t> distances() const {
    const std::int64_t n = std::max<std::int64_t>(n_queries_ + n_keys_ - 1, 0);
    const bool moved = bottom_right_ && lengths_ && lengths_.dimension() > 0;
    const extents lead = moved ? lengths_.shape() : extents{};
    auto all = moved ? new_array<std::int64_t>(lead, {1, n}) : new_array<std::int64_t>(lead, {n});
    std::size_t at = 0;
    for_each_index(lead, [&](const extents& index) {
      const auto* length = static_cast<const std::int64_t*>(lengths_.at(index, lead));
      const std::int64_t last =
          n_queries_ ? first_aligned(length ? *length : n_keys_) + n_queries_ - 1 : 0;
      for (std::int64_t k = 0; k < n; ++k) all.flat(at++) = last - k;
    });
    return all;
  }

  /// The largest of these distances that counts: of all pairs, or of those within a document.
  std::int64_t reach(const dense_array<std::int64_t>& distances) const {
    std::int64_t most = -1;
    if (!documents_)
      for (const std::int64_t each : distances) most = std::max(most, each < 0 ? -each : each);
    else
      for (const auto& [which, rows] : rows_)
        for (std::size_t i = 0; i < rows.end.size(); ++i)
          if (rows.begin[i] < rows.end[i]) {
            const std::int64_t aligned = first_aligned(which.length) + std::int64_t(i);
            most = std::max({most, aligned - rows.begin[i], rows.end[i] - 1 - aligned});
          }
    return most;
  }

  /// What the rows of all heads share.
  void describe(score_problem& problem) const {
    problem.begin_row = 1;
    problem.end_row = right_ != unbounded || documents_ ? 1 : 0;
  }

  /// The rows of the head at a leading index (..., heads).
  void describe(attention_head& head, const extents& index) const {
    if (rows_.empty()) return;
    const interval_ends& rows = rows_.at(group_of(batch_of(index)));
    head.begin = rows.begin.empty() ? nullptr : rows.begin.data();
    head.end = rows.end.data();
  }

 private:
  struct interval_ends {
    std::vector<std::int64_t> begin, end;
    std::vector<std::int64_t> origin;  ///< the first key of each query's document
  };

  /// Batch entries whose rows see the same keys.
  struct group {
    std::int64_t length;
    const std::int64_t* ids;  ///< null: no documents
    bool operator<(const group& other) const {
      return std::tie(length, ids) < std::tie(other.length, other.ids);
    }
  };
  group group_of(const extents& batch) const {
    const auto* length = static_cast<const std::int64_t*>(lengths_.at(batch, batch_));
    return {length ? *length : n_keys_,
            static_cast<const std::int64_t*>(documents_.at(batch, batch_))};
  }

  void read_lengths(const dense_array<std::int64_t>& lengths) {
    lengths_ = strided_array(lengths, 0);
    check_broadcast("key_lengths", lengths_, batch_, "the batch axes");
    for (const std::int64_t length : lengths)
      if (length < 0 || length > n_keys_)
        refuse("key_lengths must be between 0 and the number of keys, " + text_of(n_keys_) +
               ", got " + text_of(length));
  }

  void read_documents(const dense_array<std::int64_t>& ids) {
    documents_ = strided_array(ids, 1);
    check_broadcast("document_ids", documents_, joined(batch_, {n_keys_}), "(..., n_keys)");
    // The last key that a query of a short entry is aligned with is one of its keys.
    check_document_queries(n_queries_, first_aligned(n_keys_), n_keys_);
  }

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

  void add(const group& which) {
    if (rows_.count(which) != 0) return;
    interval_ends& rows = rows_[which];
    const std::int64_t length = which.length, offset = first_aligned(length);
    if (right_ == unbounded) rows.end.push_back(length);
    for (std::int64_t at = offset; at < offset + n_queries_; ++at) {
      if (left_ != unbounded) rows.begin.push_back(std::clamp<std::int64_t>(at - left_, 0, length));
      if (right_ != unbounded)
        rows.end.push_back(std::clamp<std::int64_t>(at + right_ + 1, 0, length));
    }
    if (documents_) keep_documents_apart(which, rows);
  }

  /// Cuts the interval of each query at the ends of its document. A query before the first key has
  /// none, and sees nothing.
  void keep_documents_apart(const group& which, interval_ends& rows) {
    const document_runs runs(which.ids, documents_.stride(1), n_keys_);
    const auto n = static_cast<std::size_t>(n_queries_);
    if (right_ == unbounded) rows.end.assign(n, which.length);
    rows.begin.resize(n, 0);
    rows.origin.assign(n, 0);
    for (std::size_t i = 0; i < n; ++i) {
      const std::int64_t at = first_aligned(which.length) + static_cast<std::int64_t>(i);
      const auto key = static_cast<std::size_t>(std::max<std::int64_t>(at, 0));
      rows.origin[i] = at < 0 ? 0 : runs.first[key];
      rows.begin[i] = std::max(rows.begin[i], rows.origin[i]);
      rows.end[i] = std::min(rows.end[i], at < 0 ? 0 : runs.past[key]);
    }
  }

  std::int64_t n_queries_ = 0, n_keys_ = 0;
  extents batch_;
  strided_array lengths_, documents_;
  bool causal_ = false, bottom_right_ = false;
  std::int64_t offset_ = 0, left_ = unbounded, right_ = unbounded;
  std::map<group, interval_ends> rows_;  // its entries do not move
};

}  // namespace attnscale::detail
