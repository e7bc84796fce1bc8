// SPDX-License-Identifier: BSD-3-Clause
//
// The k keys of each row with the largest scores: q . k is streamed once, in double. A row lists
// the keys above a floor; a full list keeps its k largest, and the least of them is the new floor.
// Keys come in order, so a later key with an equal score is not among the first.
#pragma once

#include <stdint.h>

#include "kernels/simd/simd.hpp"
#include "kernels/sparse/candidates-inl.hpp"
#include "kernels/sparse/tiles-inl.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::detail::key_list;
using attnscale::detail::top_keys_block;

/// Candidates beyond k before a list is reduced.
inline int64_t top_slack(int64_t k) { return k < 64 ? 64 : k; }

/// Room for the candidates of a row that sees `keys` keys.
inline int64_t top_capacity(int64_t k, int64_t keys) {
  const int64_t most = k < keys ? k + top_slack(k) + max_tile_keys : keys;
  return list_room(most < keys ? most : keys);
}

struct top_workspace {
  sparse_tile_workspace<double> score;
  int64_t capacity;
  double *limit, *value;
  uint32_t* key;

  top_workspace(const top_keys_block& b, arena& a)
      : score(b, a), capacity(top_capacity(b.k, key_ranges(b).keys())) {
    limit = a.take<double>(block_rows<double>);
    value = a.take<double>(b.rows * capacity);
    key = a.take<uint32_t>(b.rows * capacity);
  }
};

class top_rows {
 public:
  explicit top_rows(const top_keys_block& block)
      : b_(block),
        arena_{static_cast<char*>(block.scratch)},
        ws_(block, arena_),
        tiles_(block, ws_.score) {}

  void run() {
    for (int r = 0; r < block_rows<double>; ++r) {
      ws_.limit[r] = r < b_.rows ? masked_score<double> : limits<double>::infinity;
      if (r < b_.rows) list_[r] = {ws_.value + r * ws_.capacity, ws_.key + r * ws_.capacity, 0};
    }
    for_panels<double>(b_.rows, [&](query_panel panel) { tiles_.pack(panel, query_of(panel)); });
    tiles_.walk.for_tiles([&](const key_tile& at) {
      const row_view<double> k = tiles_.view(at);
      for_panels<double>(b_.rows, [&](query_panel panel) { tile(panel, at, k); });
    });
    for (int r = 0; r < b_.rows; ++r) {
      reduce(r, 0);
      b_.lists[r] = {list_[r].value, list_[r].key, list_[r].count};
    }
  }

 private:
  static constexpr int w = width<double>;

  double* query_of(query_panel panel) const {
    return ws_.score.tile.query + panel.lane * b_.head_dim;
  }

  void tile(query_panel panel, const key_tile& at, row_view<double> k) {
    sparse_tile<double> t;
    if (!tiles_.score(panel, at, k, query_of(panel), t)) return;
    for (int n = 0; n < panel.vectors; ++n) {
      const int first = panel.lane + n * w;
      if (not_below(t.high[n], load(ws_.limit + first)) == 0) continue;
      for (int r = first; r < first + w && r < b_.rows; ++r) reduce(r, top_slack(b_.k));
      t.biased ? collect<true>(first, n, at.key, t.seen) : collect<false>(first, n, at.key, t.seen);
    }
  }

  /// Appends the keys of a tile whose score is above the limit of their lane.
  template <bool Finished>
  void collect(int first, int n, int64_t key, const vector_keys& seen) {
    const vec<double> limit = load(ws_.limit + first);
    const vec<double> scale = Finished ? broadcast(1.0) : load(ws_.score.scale + first);
    const int step = seen.vectors * w;
    const double* raw = ws_.score.tile.scores + seen.begin[n] * step + n * w;
    for (int j = seen.begin[n]; j < seen.end[n]; ++j, raw += step) {
      const vec<double> t = Finished ? load(raw) : load(raw) * scale;
      unsigned above = not_below(t, limit);
      if (above == 0) continue;
      double lanes[w];
      store(lanes, t);
      for (; above != 0; above &= above - 1) {
        const int r = __builtin_ctz(above);
        candidates<double>& list = list_[first + r];
        if (lanes[r] != lanes[r]) continue;  // a row with NaN is lost
        list.value[list.count] = lanes[r];
        list.key[list.count++] = static_cast<uint32_t>(key + j - b_.key_begin);
      }
    }
  }

  /// Keeps the k largest of a list that has more than k + slack candidates.
  void reduce(int r, int64_t slack) {
    if (list_[r].count > b_.k + slack) ws_.limit[r] = keep_largest(list_[r], b_.k);
  }

  const top_keys_block& b_;
  arena arena_;
  top_workspace ws_;
  sparse_tiles<double> tiles_;
  candidates<double> list_[block_rows<double>];
};

inline void find_top_keys(const top_keys_block& block) noexcept { top_rows(block).run(); }

}  // namespace
