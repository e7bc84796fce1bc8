// SPDX-License-Identifier: BSD-3-Clause
//
// From a problem to the blocks for kernels: visible keys of each row, and where rows start.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attnscale/detail/refuse.hpp"
#include "attnscale/normalizer_traits.hpp"
#include "attnscale/problem.hpp"
#include "call/row_address.hpp"
#include "kernels/gradient/block.hpp"
#include "kernels/tile/block.hpp"
#include "machine/cpu_features.hpp"

namespace attnscale::detail {

/// Refuses leading keys with masks or tables, which need one range of keys.
inline void check_leading_keys(const score_problem& p) {
  if (p.leading_keys == 0) return;
  bool fits = p.leading_keys > 0 && p.leading_keys <= p.n_keys && p.mask_type == mask_kind::none;
  for (const attention_head& head : p.heads)
    fits = fits && !head.tables.distance_scale && !head.tables.distance_bias;
  if (!fits)
    refuse("score_problem::leading_keys must be from 0 to n_keys, with neither a mask nor tables");
}

/// Refuses heads without queries or keys.
inline void check_rows(const score_problem& p) {
  if (p.n_queries <= 0 || p.n_keys <= 0 || p.head_dim <= 0) return;
  for (const attention_head& head : p.heads)
    if (!head.query || !head.key)
      refuse("attention_head::query and key must point at rows, got null");
}

/// Refuses a null scale: the core has no defaults.
inline void check_scales(const score_problem& p) {
  check_rows(p);
  for (const attention_head& head : p.heads)
    if (!head.scale && p.n_queries > 0)
      refuse("attention_head::scale must point at one number or one per row, got null");
}

/// Range of keys [begin, end).
struct key_interval {
  std::int64_t begin, end;
};

/// Interval of visible keys of query i of a head, without the leading ones.
inline key_interval visible_keys(const score_problem& p, const attention_head& head,
                                 std::int64_t i) {
  const std::int64_t first = head.begin ? head.begin[i * p.begin_row] : 0;
  const std::int64_t begin = std::max(first, p.leading_keys);
  const std::int64_t end = head.end ? head.end[i * p.end_row] : p.n_keys;
  return {begin, std::max(begin, end)};
}

/// Up to max_gradient_rows consecutive queries of one head.
struct query_block {
  std::int64_t head, first;
  int count;
  std::int64_t begin[max_gradient_rows], end[max_gradient_rows];

  query_block(const score_problem& p, std::int64_t head_index, std::int64_t first_row,
              std::int64_t block_rows)
      : head(head_index),
        first(first_row),
        count(static_cast<int>(std::min(block_rows, p.n_queries - first_row))) {
    for (int r = 0; r < count; ++r) {
      const key_interval seen = visible_keys(p, p.heads[head], first + r);
      begin[r] = seen.begin;
      end[r] = seen.end;
    }
  }
};

/// Pointer to the number of row r of a block, or null.
inline const double* number_of(const attention_problem& p, const query_block& rows, int r) {
  const double* const number = p.heads[rows.head].number;
  return number ? number + (rows.first + r) * p.number_row : nullptr;
}

/// Pointer to the sink score of row r of a block, or null.
inline const double* sink_of(const attention_problem& p, const query_block& rows, int r) {
  return traits_of(p.rule).number == row_number::sink ? number_of(p, rows, r) : nullptr;
}

/// Fields common to the blocks of all kernels, without scratch memory.
inline score_block scores_of(const score_problem& p, const query_block& rows, key_interval keys,
                             const stop_signal& stop) {
  const attention_head& head = p.heads[rows.head];
  const std::ptrdiff_t mask_size =
      p.mask_type == mask_kind::boolean ? 1 : item_size(p.attn_mask.type);
  const auto table = [&](const void* data, const matrix_layout& layout) {
    return data ? matrix{row_at(data, layout, rows.first), layout} : matrix{};
  };
  return {.query = {row_at(head.query, p.query, rows.first), p.query},
          .key = {head.key, p.key},
          .attn_mask = {static_cast<const char*>(head.attn_mask) +
                            rows.first * p.attn_mask.row * mask_size,
                        p.attn_mask},
          .tables = {table(head.tables.distance_scale, p.tables.distance_scale),
                     table(head.tables.distance_bias, p.tables.distance_bias)},
          .form = p.form,
          .mask_type = p.mask_type,
          .rows = rows.count,
          .head_dim = p.head_dim,
          .key_begin = keys.begin,
          .key_end = keys.end,
          .prefetches = gains_from_prefetches(),
          .leading_keys = p.leading_keys,
          .first_visible = rows.begin,
          .last_visible = rows.end,
          .stop = &stop};
}

inline block_scales scales_of(const score_problem& p, const query_block& rows) {
  return {.scale = p.heads[rows.head].scale + rows.first * p.scale_row, .scale_row = p.scale_row};
}

/// Forward pass of some rows over some keys.
inline attend_block attend_block_of(const attention_problem& p, const query_block& rows,
                                    key_interval keys, const block_values& values,
                                    const block_sums& sums, const stop_signal& stop) {
  attend_block block{scores_of(p, rows, keys, stop),
                     scales_of(p, rows),
                     {.rule = p.rule,
                      .numbers = p.numbers,
                      .number = number_of(p, rows, 0),
                      .number_row = p.number_row},
                     values,
                     sums};
  // A row has at most n_keys keys, whatever k is.
  block.numbers.k = std::min(p.numbers.k, std::max<std::int64_t>(1, p.n_keys));
  if (traits_of(p.rule).solves_threshold) block.unit = 1;
  return block;
}

}  // namespace attnscale::detail
