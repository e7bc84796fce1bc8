// SPDX-License-Identifier: BSD-3-Clause
//
// The k keys of each row with the largest scores: q . k is streamed once, in double. A row lists
// the keys from a floor on, which rises when a full list is reduced: k listed keys reach it. Keys
// come in order, so a later key whose score equals the k-th largest is not among the first k.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/simd.hpp"
#include "kernels/softmax/decode_scores-inl.hpp"
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

/// The next number above x, which is finite.
inline double next_above(double x) {
  int64_t bits;
  x = x + 0.0;  // no -0
  __builtin_memcpy(&bits, &x, sizeof x);
  bits += x < 0 ? -1 : 1;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

/// Bits of the lanes where a score reaches its floor; not those with NaN.
ATTNSCALE_INLINE unsigned reaching(vec<double> score, vec<double> floor) {
  return ~not_below(floor, score) & ((1u << width<double>)-1);
}

/// Number of scores of each lane that reach a floor.
ATTNSCALE_INLINE vec<double> count_reaching(const double* score, ptrdiff_t step, int keys,
                                            vec<double> floor) {
  constexpr int parts = 4;
  const vec<double> one = broadcast(1.0), zero = broadcast(0.0);
  vec<double> count[parts] = {zero, zero, zero, zero};
  int j = 0;
  for (; j + parts <= keys; j += parts, score += parts * step)
#pragma GCC unroll 4
    for (int n = 0; n < parts; ++n)
      count[n] = count[n] + xsimd::select(load(score + n * step) >= floor, one, zero);
  for (; j < keys; ++j, score += step)
    count[0] = count[0] + xsimd::select(load(score) >= floor, one, zero);
  return (count[0] + count[1]) + (count[2] + count[3]);
}

/// A number per lane that at least k of a tile's scores, `high` at most, reach, and few others.
inline vec<double> reached_by(int64_t k, const double* score, ptrdiff_t step, int keys,
                              vec<double> high) {
  constexpr int steps = 7;
  const vec<double> half = broadcast(0.5), wanted = broadcast(static_cast<double>(k));
  vec<double> low = high;
  for (int j = 0; j < keys; ++j) low = min_or(load(score + j * step), low);
  for (int i = 0; i < steps; ++i) {
    const vec<double> middle = low * half + high * half;
    const vec_mask<double> enough = count_reaching(score, step, keys, middle) >= wanted;
    low = xsimd::select(enough, middle, low);
    high = xsimd::select(enough, high, middle);
  }
  return low;
}

/// Smallest and largest score of a list, which it pads to whole vectors with the smallest.
inline void find_range(candidates<double>& list, double& low, double& high) {
  constexpr int w = width<double>;
  const int64_t room = list_room(list.count);
  for (int64_t i = list.count; i < room; ++i) list.value[i] = list.value[0];
  vec<double> least = load(list.value), most = least;
  for (int64_t i = w; i < list.count; i += w) {
    least = min_or(load(list.value + i), least);
    most = max_or(load(list.value + i), most);
  }
  double lows[w], highs[w];
  store(lows, least);
  store(highs, most);
  low = lows[0], high = highs[0];
  for (int i = 1; i < w; ++i) {
    low = lows[i] < low ? lows[i] : low;
    high = highs[i] > high ? highs[i] : high;
  }
  for (int64_t i = list.count; i < room; ++i) list.value[i] = low;
}

/// Keeps the k largest of the list, and at most `more` others; returns the floor of later keys. k <
/// list.count, no NaN.
inline double keep_some(candidates<double>& list, int64_t k, int64_t more) {
  double low, high;
  find_range(list, low, high);
  for (int64_t above = 0; above < k || above > k + more;) {
    const double middle = low / 2 + high / 2;
    if (!(middle > low && middle < high)) return next_above(keep_largest(list, k));
    above = count_above(list, middle);
    (above < k ? high : low) = middle;
  }
  int64_t kept = 0;
  for (int64_t i = 0; i < list.count; ++i) {
    const double value = list.value[i];
    list.value[kept] = value;
    list.key[kept] = list.key[i];
    kept += value > low;
  }
  list.count = kept;
  return next_above(low);
}

/// Most keys that are sorted by counting, for each of them, those with a larger score.
constexpr int64_t ranked_keys = 128;

/// Sorts at most ranked_keys keys by decreasing score, equal scores in the order of the list.
inline void sort_by_rank(candidates<double>& list) {
  constexpr int parts = 4, together = parts * width<double>;
  const vec<double> one = broadcast(1.0), zero = broadcast(0.0);
  double value[ranked_keys];
  uint32_t key[ranked_keys];
  bool taken[ranked_keys] = {};
  const auto count = static_cast<int>(list.count);
  for (int i = 0; i < count; ++i) value[i] = list.value[i], key[i] = list.key[i];
  for (int i = count; i % together != 0; ++i) value[i] = limits<double>::lowest;
  for (int i = 0; i < count; i += together) {
    vec<double> own[parts], larger[parts];
    for (int n = 0; n < parts; ++n) own[n] = load(value + i + n * width<double>), larger[n] = zero;
    for (int j = 0; j < count; ++j)
#pragma GCC unroll 4
      for (int n = 0; n < parts; ++n)
        larger[n] = larger[n] + xsimd::select(broadcast(value[j]) > own[n], one, zero);
    double ranks[together];
    for (int n = 0; n < parts; ++n) store(ranks + n * width<double>, larger[n]);
    for (int r = 0; r < together && i + r < count; ++r) {
      auto at = static_cast<int>(ranks[r]);
      while (taken[at]) ++at;  // by an equal score
      taken[at] = true;
      list.value[at] = value[i + r];
      list.key[at] = key[i + r];
    }
  }
}

struct top_workspace {
  sparse_tile_workspace<double> score;
  decode_score_workspace<double> decode;
  int64_t capacity;
  double *floor, *value;
  uint32_t* key;

  top_workspace(const top_keys_block& b, arena& a)
      : score(b, a), decode(b, a), capacity(top_capacity(b.k, key_ranges(b).keys())) {
    floor = a.take<double>(block_rows<double>);
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
      ws_.floor[r] = r < b_.rows ? next_above(masked_score<double>) : limits<double>::infinity;
      if (r < b_.rows) list_[r] = {ws_.value + r * ws_.capacity, ws_.key + r * ws_.capacity, 0};
    }
    b_.rows <= decode_rows ? scan_rows() : scan();
    for (int r = 0; r < b_.rows; ++r) {
      if (list_[r].count > b_.k) keep_some(list_[r], b_.k, 0);
      const bool sorted = list_[r].count <= ranked_keys;
      if (sorted) sort_by_rank(list_[r]);
      b_.lists[r] = {list_[r].value, list_[r].key, list_[r].count, sorted};
    }
  }

 private:
  static constexpr int w = width<double>;

  double* query_of(query_panel panel) const {
    return ws_.score.tile.query + panel.lane * b_.head_dim;
  }

  void scan() {
    for_panels<double>(b_.rows, [&](query_panel panel) { tiles_.pack(panel, query_of(panel)); });
    tiles_.walk.for_tiles([&](const key_tile& at) {
      const row_view<double> k = tiles_.view(at);
      for_panels<double>(b_.rows, [&](query_panel panel) { tile(panel, at, k); });
    });
  }

  /// Scan of a few rows, with the channels in the lanes: as fast as memory is read.
  void scan_rows() {
    decode_scores<double> scores(b_, ws_.decode);
    tiles_.walk.for_tiles(
        [&](const key_tile& at) {
          const row_view<double> k = tiles_.view(at);
          for (int r = 0; r < b_.rows; ++r) {
            vec<double> high;
            if (scores.score(r, at, k, high) && reaching(high, broadcast(ws_.floor[r])) != 0)
              collect_row(r, at);
          }
        },
        decode_keys);
  }

  void collect_row(int r, const key_tile& at) {
    make_room(r);
    const vec<double> floor = broadcast(ws_.floor[r]);
    const auto first = static_cast<uint32_t>(at.key - b_.key_begin);
    for (int j = 0; j < at.keys; j += w) {
      const double* const t = ws_.decode.scores + j;
      for (unsigned some = reaching(load(t), floor); some != 0; some &= some - 1) {
        const int i = __builtin_ctz(some);
        append(r, t[i], first + static_cast<uint32_t>(j + i));
      }
    }
  }

  void tile(query_panel panel, const key_tile& at, row_view<double> k) {
    sparse_tile<double> t;
    if (!tiles_.score(panel, at, k, query_of(panel), t)) return;
    for (int n = 0; n < panel.vectors; ++n) {
      const int first = panel.lane + n * w;
      if (reaching(t.high[n], load(ws_.floor + first)) == 0) continue;
      for (int r = first; r < first + w && r < b_.rows; ++r) make_room(r);
      if (!t.biased) finish(first, n, t.seen);
      collect(first, n, at.key, t.seen, t.high[n]);
    }
  }

  /// Turns products into scores.
  void finish(int first, int n, const vector_keys& seen) {
    const vec<double> scale = load(ws_.score.scale + first);
    double* score = ws_.score.tile.scores + n * w;
    for (int j = 0; j < seen.end[n]; ++j, score += seen.vectors * w)
      store(score, load(score) * scale);
  }

  /// Appends the keys of a tile whose scores, `high` at most, reach the floor of their lane.
  void collect(int first, int n, int64_t key, const vector_keys& seen, vec<double> high) {
    const ptrdiff_t step = seen.vectors * w;
    const int keys = seen.end[n] - seen.begin[n];
    const double* score = ws_.score.tile.scores + seen.begin[n] * step + n * w;
    if (list_[first].count == 0 && keys >= 2 * b_.k) {
      const vec<double> reached = reached_by(b_.k, score, step, keys, high);
      store(ws_.floor + first, max_or(reached, load(ws_.floor + first)));
    }
    const auto at = static_cast<uint32_t>(key + seen.begin[n] - b_.key_begin);
    const vec<double> floor = load(ws_.floor + first);
    double counts[w];
    store(counts, count_reaching(score, step, keys, floor));
    double all = 0;
    for (const double each : counts) all += each;
    if (2 * all > keys) {
      for (int r = 0; r < w; ++r)
        if (counts[r] > 0) append_lane(first + r, score + r, step, keys, at);
      return;
    }
    for (int j = 0; j < keys; ++j, score += step)
      for (unsigned some = reaching(load(score), floor); some != 0; some &= some - 1) {
        const int r = __builtin_ctz(some);
        append(first + r, score[r], at + static_cast<uint32_t>(j));
      }
  }

  /// Appends the keys of one row without branches, which many candidates would make unpredictable.
  void append_lane(int r, const double* score, ptrdiff_t step, int keys, uint32_t at) {
    candidates<double> list = list_[r];
    const double floor = ws_.floor[r];
    for (int j = 0; j < keys; ++j, score += step) {
      list.value[list.count] = *score;
      list.key[list.count] = at + static_cast<uint32_t>(j);
      list.count += *score >= floor;
    }
    list_[r].count = list.count;
  }

  void append(int r, double score, uint32_t key) {
    candidates<double>& list = list_[r];
    list.value[list.count] = score;
    list.key[list.count++] = key;
  }

  /// Reduces the list of row r if the next tile may not fit.
  void make_room(int r) {
    const int64_t slack = top_slack(b_.k);
    if (list_[r].count > b_.k + slack) ws_.floor[r] = keep_some(list_[r], b_.k, slack / 8);
  }

  const top_keys_block& b_;
  arena arena_;
  top_workspace ws_;
  sparse_tiles<double> tiles_;
  candidates<double> list_[block_rows<double>];
};

inline void find_top_keys(const top_keys_block& block) noexcept { top_rows(block).run(); }

}  // namespace
