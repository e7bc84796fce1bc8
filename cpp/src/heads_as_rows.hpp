// SPDX-License-Identifier: BSD-3-Clause
//
// Decoding with grouped queries: heads of one query that read the same keys become the rows of one
// head, so that keys and values are read once for all of them. It changes no bit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "attnscale/problem.hpp"
#include "elements.hpp"
#include "kernels/tile/block.hpp"

namespace attnscale::detail {

class heads_as_rows {
 public:
  /// least: heads that have to be left, one a thread at least.
  heads_as_rows(const attention_problem& p, std::int64_t least) : p_(p) {
    const auto heads = static_cast<std::int64_t>(p.heads.size());
    if (p.n_queries != 1 || has_tables()) return;
    std::int64_t shared = 0;  // by the first heads
    while (shared < heads && share(p.heads[0], p.heads[static_cast<std::size_t>(shared)])) ++shared;
    together_ = std::min<std::int64_t>(shared, decode_rows);
    while (together_ > 1 && (shared % together_ != 0 || heads < least * together_ || !fits()))
      --together_;
  }

  /// Whether some heads can be put together.
  bool any() const { return together_ > 1; }

  attention_problem problem() const {
    attention_problem rows = p_;
    rows.n_queries = together_;
    rows.query.row = *step(&attention_head::query, item_size(p_.query.type));
    rows.output.row = *step(&attention_head::output, item_size(p_.output.type));
    rows.attn_mask.row = *step(&attention_head::attn_mask, mask_item());
    rows.scale_row = *step(&attention_head::scale, sizeof(double));
    rows.number_row = *step(&attention_head::number, sizeof(double));
    rows.begin_row = rows.end_row = 0;
    rows.heads.clear();
    for (std::size_t h = 0; h < p_.heads.size(); h += static_cast<std::size_t>(together_))
      rows.heads.push_back(p_.heads[h]);
    return rows;
  }

 private:
  std::ptrdiff_t mask_item() const {
    return p_.mask_type == mask_kind::boolean ? 1 : item_size(p_.attn_mask.type);
  }

  bool has_tables() const {
    return std::ranges::any_of(p_.heads, [](const attention_head& head) {
      return head.tables.distance_scale || head.tables.distance_bias;
    });
  }

  /// Whether two heads read the same keys and values.
  bool share(const attention_head& a, const attention_head& b) const {
    const auto same = [](const std::int64_t* x, const std::int64_t* y) {
      return x == y || (x && y && *x == *y);
    };
    return a.key == b.key && a.value == b.value && same(a.begin, b.begin) && same(a.end, b.end);
  }

  /// Whether the heads fall into groups that share keys, and all else has one distance in them.
  bool fits() const {
    if (p_.heads.size() % static_cast<std::size_t>(together_) != 0) return false;
    for (std::size_t h = 0; h < p_.heads.size(); ++h)
      if (!share(p_.heads[h - h % static_cast<std::size_t>(together_)], p_.heads[h])) return false;
    return step(&attention_head::query, item_size(p_.query.type)) &&
           step(&attention_head::output, item_size(p_.output.type)) &&
           step(&attention_head::attn_mask, mask_item()) &&
           step(&attention_head::scale, sizeof(double)) &&
           step(&attention_head::number, sizeof(double));
  }

  /// The distance from head to head of a group, in items; none if it is not the same everywhere.
  template <class Pointer>
  std::optional<std::ptrdiff_t> step(Pointer attention_head::*of, std::ptrdiff_t item) const {
    std::optional<std::ptrdiff_t> found;
    for (std::size_t h = 1; h < p_.heads.size(); ++h) {
      if (h % static_cast<std::size_t>(together_) == 0) continue;
      const auto* const before = reinterpret_cast<const char*>(p_.heads[h - 1].*of);
      const auto* const here = reinterpret_cast<const char*>(p_.heads[h].*of);
      if ((before == nullptr) != (here == nullptr)) return {};
      const std::ptrdiff_t bytes = here ? here - before : 0;
      if (bytes % item != 0 || (found && *found != bytes / item)) return {};
      found = bytes / item;
    }
    return found;
  }

  const attention_problem& p_;
  std::int64_t together_ = 1;
};

}  // namespace attnscale::detail
