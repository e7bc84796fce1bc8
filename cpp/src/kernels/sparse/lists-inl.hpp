// SPDX-License-Identifier: BSD-3-Clause
//
// Entmax and top-k: q . k is streamed once, and each row keeps the few keys that may end above its
// threshold. Entmax: those within 1 / (alpha - 1) of the running maximum. A full list is solved for
// the threshold of its keys, which more keys can only raise, and keeps the keys above it. Values
// are read only for keys with positive weight. Rows with too many candidates are left to
// all_score_rows.
#pragma once

#include <stdint.h>

#include "attnscale/types.hpp"
#include "kernels/numbers.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/softmax/decode_scores-inl.hpp"
#include "kernels/sparse/all_scores-inl.hpp"
#include "kernels/sparse/candidates-inl.hpp"
#include "kernels/sparse/edge-inl.hpp"
#include "kernels/sparse/power-inl.hpp"
#include "kernels/sparse/row-inl.hpp"
#include "kernels/sparse/threshold-inl.hpp"
#include "kernels/sparse/tiles-inl.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::normalizer;
using attnscale::detail::attend_block;

constexpr int list_capacity = 768;
static_assert(list_capacity >= 3 * max_tile_keys);

/// Gap between lists: an odd number of cache lines, because lists at multiples of 4 KiB would share
/// a few cache sets, in which all grow at once.
constexpr int64_t list_gap = 16;

template <class T>
struct list_workspace {
  sparse_tile_workspace<T> score;
  decode_score_workspace<T> decode;
  T *limit, *floor, *list_value;
  row_sum<T> sum;
  uint32_t* list_key;
  double* x;
  int64_t capacity, stride;      ///< of a list
  all_score_workspace<T> dense;  // last: the rest stays close together

  list_workspace(const attend_block& b, arena& a)
      : score(b, a), decode(b, a), dense(take_lists(b, a), a) {}

 private:
  const attend_block& take_lists(const attend_block& b, arena& a) {
    constexpr int64_t lanes = block_rows<T>;
    for (T** lane_array : {&limit, &floor}) *lane_array = a.take<T>(lanes);
    const int64_t value_stride = (b.value_dim + width<T> - 1) / width<T> * width<T>;
    for (T** part : {&sum.recent, &sum.total, &sum.copy}) *part = a.take<T>(value_stride);
    // Without neighbours that share its products a row gains nothing from all_score_rows.
    const int64_t keys = key_ranges(b).keys();
    capacity = b.rows <= decode_rows && keys > list_capacity ? list_room(keys) : list_capacity;
    stride = (capacity / list_gap / 2 * 2 + 1) * list_gap;
    x = a.take<double>(capacity);
    const int64_t lists = b.rows <= decode_rows ? b.rows : lanes;
    list_value = a.take<T>(lists * stride);
    list_key = a.take<uint32_t>(lists * stride);
    return b;
  }
};

template <class T>
class list_rows {
 public:
  explicit list_rows(const attend_block& block)
      : b_(block),
        arena_{static_cast<char*>(block.scratch)},
        ws_(block, arena_),
        tiles_(block, ws_.score),
        dense_(block, tiles_, ws_.dense) {
    top_k_ = block.rule == normalizer::top_k;
    unit_ = block.numbers.alpha - 1;
    // Rounded up: a key that may have a weight is a candidate.
    gap_ = top_k_ ? limits<T>::infinity : static_cast<T>((1 + 2 * rounding) / unit_);
    // Lists of more than a 64th of the keys take longer than all scores (measured), and longer
    // lists than the capacity do not fit.
    const int64_t keys = ws_.dense.keys;
    all_dense_ = top_k_ && ws_.dense.vectors > 0 &&
                 (block.numbers.k > keys / 64 ||
                  (keys > list_capacity && block.numbers.k > list_capacity - max_tile_keys));
    with_power(block.numbers.alpha, [&](const auto& power) { slow_power_ = power.is_slow; });
  }

  void run() {
    prepare();
    if (!all_dense_) {
      b_.rows <= decode_rows ? scan_rows() : scan();
      for (int r = 0; r < b_.rows && !tiles_.walk.stopped; ++r)
        if (!is_dense_[r]) finish(r);
    }
    if (!tiles_.walk.stopped) dense_.run(is_dense_, ws_.floor);
  }

 private:
  static constexpr int w = width<T>;
  static constexpr unsigned every_lane = (1u << w) - 1;
  static constexpr int all_steps = threshold_search::most_steps;
  static constexpr double rounding = sizeof(T) == 4 ? 1.2e-7 : 2.3e-16;

  void prepare() {
    for (int r = 0; r < block_rows<T>; ++r) {
      is_dense_[r] = all_dense_ && r < b_.rows;
      active_[r] = r < b_.rows;
      if (r < b_.rows)
        list_[r] = {ws_.list_value + r * ws_.stride, ws_.list_key + r * ws_.stride, 0};
      ws_.score.top[r] = ws_.floor[r] = limits<T>::lowest;
      shrink_at_[r] = first_shrink();
    }
    if (b_.rows <= decode_rows) return;
    for_panels<T>(b_.rows, [&](query_panel panel) { tiles_.pack(panel, query_of(panel)); });
  }

  T* query_of(query_panel panel) const { return ws_.score.tile.query + panel.lane * b_.head_dim; }

  void scan() {
    const int64_t first = tiles_.walk.visible.first();
    bool whole = true;  // every panel has seen every tile
    tiles_.walk.for_tiles([&](const key_tile& at) {
      const row_view<T> k = tiles_.view(at);
      const int64_t before = at.key - first;
      bool some = false;
      for_panels<T>(b_.rows, [&](query_panel panel) {
        const int lane = panel.lane, lanes = panel.vectors * w;
        for (int r = lane; r < lane + lanes; ++r) make_room(r, at.keys);
        if (0 < before && before <= max_tile_keys) vote(lane, lanes, before);
        if (!any_active(lane, lanes)) return whole = false, void();
        some = true;
        tile(panel, at, k);
      });
      if (!some) tiles_.walk.end();
    });
    tiles_.look_at_values = tiles_.look_at_values && !whole;
  }

  /// Scan of a few rows, with the channels in the lanes: as fast as memory is read. Their lists
  /// have room for all keys.
  void scan_rows() {
    decode_scores<T> scores(b_, ws_.decode);
    tiles_.walk.for_tiles(
        [&](const key_tile& at) {
          const row_view<T> k = tiles_.view(at, decode_keys);
          for (int r = 0; r < b_.rows; ++r) {
            make_room(r, at.keys);
            vec<T> high;
            if (!scores.score(r, at, k, high)) continue;
            tiles_.propagate_row(r, at.keys, at.masked ? ws_.decode.bias : nullptr);
            tiles_.track_row_least(r, ws_.decode.scores, at.keys);
            collect_row(r, high, at.key, at.keys);
          }
        },
        decode_keys);
  }

  void collect_row(int r, vec<T> high, int64_t key, int keys) {
    T& top = ws_.score.top[r];
    T lanes[w];
    store(lanes, high);
    if (any<T>(high > broadcast(top)))
      for (const T each : lanes) top = each > top ? each : top;
    const T within = top_k_ ? limits<T>::lowest : limit_of(top);
    const vec<T> limit = broadcast(within > ws_.floor[r] ? within : ws_.floor[r]);
    candidates<T>& list = list_[r];
    for (int j = 0; j < keys; j += w) {
      const T* t = ws_.decode.scores + j;
      for (unsigned above = not_below(load(t), limit); above != 0; above &= above - 1) {
        const int i = __builtin_ctz(above);
        list.value[list.count] = t[i];
        list.key[list.count++] = static_cast<uint32_t>(key + j + i - b_.key_begin);
      }
    }
  }

  /// After the first tile, leaves a panel whose rows list most of its keys to all_score_rows: the
  /// whole panel, because its products are computed together. Below a fraction of 0.45 lists were
  /// as fast or faster; 0.8 if the power is slow, since lists need fewer powers.
  void vote(int lane, int lanes, int64_t seen) {
    if (top_k_ || ws_.dense.vectors == 0 || 2 * seen > ws_.dense.keys) return;
    int64_t rows = 0, listed = 0;
    for (int r = lane; r < lane + lanes && r < b_.rows; ++r) ++rows, listed += list_[r].count;
    if (20 * listed <= (slow_power_ ? 16 : 9) * seen * rows) return;
    for (int r = lane; r < lane + lanes && r < b_.rows; ++r) leave(r);
  }

  void leave(int r) {
    is_dense_[r] = true;
    active_[r] = false;
  }

  bool any_active(int lane, int lanes) const {
    for (int r = lane; r < lane + lanes; ++r)
      if (active_[r]) return true;
    return false;
  }

  void tile(query_panel panel, const key_tile& at, row_view<T> k) {
    sparse_tile<T> t;
    const int lane = panel.lane;
    if (!tiles_.score(panel, at, k, query_of(panel), t)) return;
    for (int n = 0; n < panel.vectors; ++n) raise_limit(lane + n * w, t.high[n]);
    t.biased ? collect<true>(lane, at.key, t.seen) : collect<false>(lane, at.key, t.seen);
  }

  void raise_limit(int lane, vec<T> high) {
    const vec<T> top = max_or(high, load(ws_.score.top + lane));
    store(ws_.score.top + lane, top);
    const vec<T> within = top_k_ ? broadcast(limits<T>::lowest) : limit_of(top);
    store(ws_.limit + lane, max_or(within, load(ws_.floor + lane)));
  }

  /// Score below which no key has a weight; rounded down.
  vec<T> limit_of(vec<T> top) const {
    return top - fma(xsimd::abs(top), broadcast(T(4 * rounding)), broadcast(gap_));
  }
  T limit_of(T top) const { return top - ((top < 0 ? -top : top) * T(4 * rounding) + gap_); }

  /// Appends the keys of the tile whose score is above the limit of their lane, or is NaN.
  template <bool Finished>
  void collect(int lane, int64_t key, const vector_keys& seen) {
    for (int n = 0; n < seen.vectors; ++n) {
      const int first = lane + n * w;
      unsigned open = 0;
      for (int r = 0; r < w; ++r) open |= active_[first + r] ? 1u << r : 0u;
      if (open == 0) continue;
      const vec<T> limit = load(ws_.limit + first);
      const vec<T> scale = Finished ? broadcast(T(1)) : load(ws_.score.scale + first);
      if (open == every_lane && collect_all(first, n, key, seen, limit, scale)) continue;
      for (int j = seen.begin[n]; j < seen.end[n]; ++j) {
        const vec<T> raw = load(ws_.score.tile.scores + (j * seen.vectors + n) * w);
        const vec<T> t = Finished ? raw : raw * scale;
        const unsigned above = not_below(t, limit) & open;
        if (above != 0) append(first, above, t, static_cast<uint32_t>(key + j - b_.key_begin));
      }
    }
  }

  /// Appends all keys of the tile if every row of a vector lists all of them; else does nothing and
  /// returns false.
  bool collect_all(int first, int n, int64_t key, const vector_keys& seen, vec<T> limit,
                   vec<T> scale) {
    const int begin = seen.begin[n], keys = seen.end[n] - begin, step = seen.vectors * w;
    const T* const raw = ws_.score.tile.scores + begin * step + n * w;
    for (int j = 0; j < keys; ++j)
      if (not_below(load(raw + j * step) * scale, limit) != every_lane) return false;
    candidates<T>* const list = list_ + first;
    const int64_t at = list[0].count;
    for (int r = 1; r < w; ++r)
      if (list[r].count != at) return false;
    lanes_to_rows(raw, step, keys, scale, w, list[0].value + at, ws_.stride);
    const auto from = static_cast<uint32_t>(key + begin - b_.key_begin);
    for (int r = 0; r < w; ++r) {
      for (int j = 0; j < keys; ++j) list[r].key[at + j] = from + static_cast<uint32_t>(j);
      list[r].count += keys;
    }
    return true;
  }

  ATTNSCALE_INLINE void append(int lane, unsigned above, vec<T> t, uint32_t key) {
    T lanes[w];
    store(lanes, t);
    for (; above != 0; above &= above - 1) {
      const int r = __builtin_ctz(above);
      candidates<T>& list = list_[lane + r];
      list.value[list.count] = lanes[r];
      list.key[list.count++] = key;
    }
  }

  /// Makes room for a tile of keys in a row's list; a row without room is left to all_score_rows.
  /// Lists are reduced early: their threshold lets fewer keys in.
  void make_room(int r, int keys) {
    if (!active_[r]) return;
    candidates<T>& list = list_[r];
    const bool full = list.count + keys > ws_.capacity;
    if (!full && list.count <= shrink_at_[r]) return;
    if (!has_nan(list)) top_k_ ? shrink_to_largest(r) : shrink_to_support(r, full);
    shrink_at_[r] = first_shrink() + 2 * list.count;
    if (list.count + keys > ws_.capacity) leave(r);
  }

  int64_t first_shrink() const { return 64 + (top_k_ ? b_.numbers.k : 0); }

  void shrink_to_largest(int r) {
    if (list_[r].count <= b_.numbers.k) return;
    // A later equal score is not among the largest.
    ws_.floor[r] = keep_largest(list_[r], b_.numbers.k);
  }

  /// Solves with all steps if the list is full; else with a few, for a lower bound.
  void shrink_to_support(int r, bool full) {
    if (!(ws_.score.top[r] < limits<T>::infinity)) return;
    const double tau = threshold(r, full ? all_steps : 3) - threshold_error;
    keep_above(list_[r], ws_.x, tau);
    // Rounded down, so that no key above the threshold is lost.
    const double floor = static_cast<double>(ws_.score.top[r]) + tau / unit_;
    const double size = floor < 0 ? -floor : floor;
    ws_.floor[r] = static_cast<T>(floor - 4 * rounding * size);
  }

  /// Threshold of a row's list, for x, starting from its known lower bound.
  double threshold(int r, int steps) {
    fill_x(r);
    const double known =
        (static_cast<double>(ws_.floor[r]) - static_cast<double>(ws_.score.top[r])) * unit_ -
        threshold_error;
    return entmax_threshold(ws_.x, list_[r].count, b_.numbers.alpha, known > -1 ? known : -1,
                            steps);
  }

  /// x = (alpha - 1) (score - largest score), padded with -infinity.
  void fill_x(int r) {
    const candidates<T>& list = list_[r];
    const auto top = static_cast<double>(ws_.score.top[r]);
    for (int64_t i = 0; i < list.count; ++i)
      ws_.x[i] = (static_cast<double>(list.value[i]) - top) * unit_;
    for (int64_t i = list.count; i < padded(list.count); ++i) ws_.x[i] = -limits<double>::infinity;
  }

  void finish(int r) {
    candidates<T>& list = list_[r];
    const bool nan = tiles_.bad[r] || has_nan(list) || ws_.score.top[r] == limits<T>::infinity;
    if (nan) list.count = 0;
    double log_sum = 0;
    if (list.count > 0 && top_k_)
      log_sum = softmax_of_largest(list, b_.numbers.k, ws_.x, ws_.score.top[r]);
    if (list.count > 0 && !top_k_) {
      const double tau = threshold(r, all_steps);
      support_edge<T> edge;
      if (b_.numbers.alpha > 2) {
        keep_above(list, ws_.x, tau - threshold_error);
        edge = edge_search<T>(list, b_.numbers.alpha, unit_, ws_.x).find(ws_.score.top[r]);
      }
      entmax_weights(list, ws_.x, b_.numbers.alpha, tau, edge);
    }
    if (b_.report) {
      report_row<T>(b_, {list, ws_.x, static_cast<double>(ws_.score.top[r]), nan, log_sum}, r);
      b_.report->least[r] = tiles_.least_of(r, nan);
    }
    if (!b_.output) return;
    add_values_of(b_, list, ws_.x, ws_.sum);
    tiles_.write(r, nan, ws_.sum.total);
  }

  const attend_block& b_;
  arena arena_;
  list_workspace<T> ws_;
  sparse_tiles<T> tiles_;
  all_score_rows<T> dense_;
  bool top_k_, all_dense_, slow_power_;
  double unit_;  ///< alpha - 1: factor from scores to x
  T gap_;        ///< 1 / (alpha - 1)
  candidates<T> list_[block_rows<T>];
  int64_t shrink_at_[block_rows<T>];
  bool active_[block_rows<T>], is_dense_[block_rows<T>];
};

}  // namespace
