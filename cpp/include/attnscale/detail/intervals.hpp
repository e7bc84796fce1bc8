// SPDX-License-Identifier: BSD-3-Clause
//
// Visible keys of each query: causal masks, windows, key lengths and packed documents give one
// interval of keys per row. All front ends share this code and the counts for laws.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "attnscale/detail/export.hpp"
#include "attnscale/detail/strided_array.hpp"

namespace attnscale {

class scale_law;

/// An open side of a window.
inline constexpr std::int64_t unbounded = std::numeric_limits<std::int64_t>::max();

/// Last visible key of query i: i for top_left, i + n_keys (or key length) - n_queries for
/// bottom_right, i + attention_options::causal_offset for offset.
enum class causal_alignment : std::uint8_t { none, top_left, bottom_right, offset };

/// Number of visible keys on each side of the (aligned) diagonal. `unbounded`: that side is open.
struct key_window {
  std::int64_t left = unbounded;
  std::int64_t right = unbounded;
};

/// Alignment given by the options of a call; checks that they agree.
ATTNSCALE_EXPORT causal_alignment alignment_of(bool is_causal, causal_alignment causal,
                                               std::int64_t causal_offset);

/// Options that determine the visible keys, except masks of single pairs.
struct interval_options {
  std::int64_t n_queries = 0, n_keys = 0;
  std::span<const std::int64_t> batch{};  ///< extents of all leading axes except heads
  causal_alignment causal = causal_alignment::none;
  std::int64_t causal_offset = 0;  ///< only for causal_alignment::offset
  key_window window{};
  std::optional<integer_array> key_lengths{};   ///< broadcasts to the batch
  std::optional<integer_array> document_ids{};  ///< broadcasts to (batch..., n_keys)
};

/// Intervals of keys: query i sees keys begin ... end - 1 of its row. Neither decreases with i.
class ATTNSCALE_EXPORT key_intervals {
 public:
  using rows = row_array<std::int64_t>;

  key_intervals() = default;
  /// Refuses options that are out of range or do not fit.
  explicit key_intervals(const interval_options& options);

  const std::optional<rows>& begin() const { return begin_; }    ///< absent: from the first key
  const std::optional<rows>& end() const { return end_; }        ///< absent: to the last key
  const std::optional<rows>& origin() const { return origin_; }  ///< first key of the document
  /// Query i is aligned with key i + offset; one number, or one for each key length.
  const rows& offset() const { return offset_; }

  /// Index of the key that each query is aligned with; it need not exist.
  rows aligned() const;

  // Counts for the n of laws (n_means).
  rows positions() const;     ///< position of the aligned key within its document
  rows row_sizes() const;     ///< keys of the document up to the last one that the query may see
  rows visible_keys() const;  ///< length of the interval: visible keys without a mask

  /// Distances, query position less key position: entry n_queries - 1 - i + j is that of query i
  /// and key j. Shape (n_distances), or (..., heads = 1, n_distances) where key lengths move the
  /// diagonal.
  rows distances() const;
  /// The largest distance in use, over all pairs or those within a document; -1 without pairs.
  std::int64_t reach() const;

 private:
  std::int64_t n_queries_ = 0, n_keys_ = 0;
  rows offset_{{}, {0}};
  std::optional<rows> begin_, end_, origin_;
};

/// Scale of each row by a law of one of these counts. visible_keys: counts under a mask; null
/// without a mask.
ATTNSCALE_EXPORT row_array<double> law_scales(const scale_law& law, const key_intervals& intervals,
                                              const row_array<std::int64_t>* visible_keys,
                                              std::int64_t head_dim);

namespace detail {

/// Alignment of any struct of options.
template <class Options>
causal_alignment check_causal(const Options& options) {
  return alignment_of(options.is_causal, options.causal, options.causal_offset);
}

}  // namespace detail
}  // namespace attnscale
