// SPDX-License-Identifier: BSD-3-Clause
//
// Decoding with grouped queries: single-query heads that read the same keys become rows of one
// head, so that keys and values are read once for all of them. The bits do not change.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "attnscale/problem.hpp"
#include "call/row_address.hpp"
#include "kernels/tile/block.hpp"

namespace attnscale::detail {

/// Whether two single-query heads read the same keys and values.
inline bool share_keys(const attention_head& a, const attention_head& b) {
  const auto same = [](const std::int64_t* x, const std::int64_t* y) {
    return x == y || (x && y && *x == *y);
  };
  return a.key == b.key && a.value == b.value && same(a.begin, b.begin) && same(a.end, b.end);
}

/// Distance between heads in groups of this size, in items; nullopt if it is not constant.
template <class Pointer>
std::optional<std::ptrdiff_t> head_step(const attention_problem& p, std::size_t together,
                                        Pointer attention_head::*of, std::ptrdiff_t item) {
  std::optional<std::ptrdiff_t> found;
  for (std::size_t h = 1; h < p.heads.size(); ++h) {
    if (h % together == 0) continue;
    const auto* const before = reinterpret_cast<const char*>(p.heads[h - 1].*of);
    const auto* const here = reinterpret_cast<const char*>(p.heads[h].*of);
    if ((before == nullptr) != (here == nullptr)) return {};
    const std::ptrdiff_t bytes = here ? here - before : 0;
    if (bytes % item != 0 || (found && *found != bytes / item)) return {};
    found = bytes / item;
  }
  return found;
}

/// p with `together` neighbouring heads as rows of one; nullopt if a group reads different keys or
/// its arrays do not lie like rows.
inline std::optional<attention_problem> put_together(const attention_problem& p,
                                                     std::size_t together) {
  for (std::size_t h = 0; h < p.heads.size(); ++h)
    if (!share_keys(p.heads[h - h % together], p.heads[h])) return {};
  const std::ptrdiff_t mask_item =
      p.mask_type == mask_kind::boolean ? 1 : item_size(p.attn_mask.type);
  const auto query = head_step(p, together, &attention_head::query, item_size(p.query.type));
  const auto output = head_step(p, together, &attention_head::output, item_size(p.output.type));
  const auto mask = head_step(p, together, &attention_head::attn_mask, mask_item);
  const auto scale = head_step(p, together, &attention_head::scale, sizeof(double));
  const auto number = head_step(p, together, &attention_head::number, sizeof(double));
  if (!(query && output && mask && scale && number)) return {};
  attention_problem rows = p;
  rows.n_queries = static_cast<std::int64_t>(together);
  rows.query.row = *query;
  rows.output.row = *output;
  rows.attn_mask.row = *mask;
  rows.scale_row = *scale;
  rows.number_row = *number;
  rows.begin_row = rows.end_row = 0;
  rows.heads.clear();
  for (std::size_t h = 0; h < p.heads.size(); h += together) rows.heads.push_back(p.heads[h]);
  return rows;
}

/// p with as many heads per group as fit in a block and leave at least `least` groups; nullopt if
/// no grouping is possible.
inline std::optional<attention_problem> heads_as_rows(const attention_problem& p,
                                                      std::size_t least) {
  const std::size_t heads = p.heads.size();
  if (p.n_queries != 1) return {};
  std::size_t shared = 0;  // by the first heads
  while (shared < heads && share_keys(p.heads[0], p.heads[shared])) ++shared;
  if (shared < 2 || std::ranges::any_of(p.heads, [](const attention_head& head) {
        return head.tables.distance_scale || head.tables.distance_bias;
      }))
    return {};
  for (std::size_t together = std::min<std::size_t>(shared, decode_rows); together > 1;
       --together) {
    if (shared % together != 0 || heads % together != 0 || heads < least * together) continue;
    if (auto rows = put_together(p, together)) return rows;
  }
  return {};
}

}  // namespace attnscale::detail
