// SPDX-License-Identifier: BSD-3-Clause
//
// Entmax and top-k for rows with many candidates (equal scores, small scales, a large k): all
// scores of a few vectors of rows are kept, thresholds are found for all lanes at once in double,
// and the weights go through the value product of the softmax path, tile by tile.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/types.hpp"
#include "kernels/numbers.hpp"
#include "kernels/simd/exp-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/softmax/decode_scores-inl.hpp"
#include "kernels/softmax/output-inl.hpp"
#include "kernels/sparse/candidates-inl.hpp"
#include "kernels/sparse/edge-inl.hpp"
#include "kernels/sparse/largest-inl.hpp"
#include "kernels/sparse/power-inl.hpp"
#include "kernels/sparse/row-inl.hpp"
#include "kernels/sparse/threshold-inl.hpp"
#include "kernels/sparse/tiles-inl.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/product-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::normalizer;
using attnscale::detail::attend_block;

/// Maximum number of scores kept for a group of rows: 1 MB of float, which stays in a core's cache.
/// A single vector of rows may keep more.
constexpr int64_t dense_entries = int64_t{1} << 18;

template <class T>
struct all_score_workspace {
  int vectors = 0;  ///< per group of rows; 0 if lists have room for all keys
  int64_t keys;
  T *kept, *recent, *total = nullptr, *compensation = nullptr, *value_clean, *check;
  T* list_value = nullptr;
  uint32_t* list_key = nullptr;
  double* x = nullptr;

  all_score_workspace(const attend_block& b, arena& a) : keys(key_ranges(b).keys()) {
    if (keys <= max_tile_keys || b.rows <= decode_rows) return;
    const int64_t fit = dense_entries / (keys * width<T>);
    vectors = static_cast<int>(fit < 1 ? 1 : fit > panel_vectors ? panel_vectors : fit);
    const int64_t lanes = vectors * width<T>;
    recent = a.take<T>(b.value_dim * lanes);
    if (keys > tiles_per_carry * tile_keys) {
      total = a.take<T>(b.value_dim * lanes);
      compensation = a.take<T>(b.value_dim * lanes);
    }
    value_clean = a.take<T>(max_tile_keys * b.value_dim);
    check = a.take<T>(lanes);
    list_value = a.take<T>(list_room(keys));
    list_key = a.take<uint32_t>(list_room(keys));
    x = a.take<double>(padded(keys));
    kept = a.take<T>(keys * lanes);
  }
};

template <class T>
class all_score_rows {
 public:
  all_score_rows(const attend_block& block, sparse_tiles<T>& tiles,
                 const all_score_workspace<T>& ws)
      : b_(block), tiles_(tiles), ws_(ws), first_(tiles.walk.visible.first()) {}

  /// Processes the wanted rows. floor: lower bounds of their thresholds as scores.
  void run(const bool* wanted, const T* floor) {
    wanted_ = wanted;
    floor_ = floor;
    for (int lane = 0; lane < b_.rows && !tiles_.walk.stopped;) {
      int vectors = 0;
      while (vectors < ws_.vectors && wants(lane + vectors * w)) ++vectors;
      if (vectors > 0) group({lane, vectors});
      lane += (vectors > 0 ? vectors : 1) * w;
    }
  }

 private:
  static constexpr int w = width<T>;
  static constexpr int wd = width<double>;

  bool wants(int lane) const {
    for (int r = lane; r < lane + w && r < b_.rows; ++r)
      if (wanted_[r]) return true;
    return false;
  }

  T* kept(int n, int64_t key) const { return ws_.kept + (n * ws_.keys + key - first_) * w; }

  void group(query_panel panel) {
    const int lane = panel.lane, lanes = panel.vectors * w;
    tiles_.pack(panel, tiles_.ws.tile.query);
    for (int i = 0; i < lanes; ++i) {
      tiles_.ws.top[lane + i] = limits<T>::lowest;
      ws_.check[i] = T(0);
    }
    tiles_.walk.for_tiles([&](const key_tile& tile) { keep(panel, tile); });
    if (tiles_.walk.stopped) return;
    start_searches(lane, lanes);
    b_.rule == normalizer::top_k ? find_cuts(panel.vectors) : find_thresholds(panel.vectors);
    if (tiles_.walk.stopped) return;
    for (int n = 0; n < panel.vectors && b_.report; ++n) report_vector(lane, n);
    if (b_.output) add_values(panel);
  }

  /// Copies finished scores of a tile into the kept ones, with `masked_score` for hidden keys.
  void keep(query_panel panel, const key_tile& at) {
    sparse_tile<T> tile;
    const int keys = at.keys, lane = panel.lane;
    const bool some = tiles_.score(panel, at, tiles_.view(at), tiles_.ws.tile.query, tile);
    for (int n = 0; n < panel.vectors; ++n) {
      T* out = kept(n, at.key);
      const int begin = some ? tile.seen.begin[n] : keys, end = some ? tile.seen.end[n] : keys;
      for (int j = 0; j < begin; ++j) store(out + j * w, broadcast(masked_score<T>));
      for (int j = end; j < keys; ++j) store(out + j * w, broadcast(masked_score<T>));
      if (!some) continue;
      const vec<T> scale = tile.biased ? broadcast(T(1)) : load(tiles_.ws.scale + lane + n * w);
      vec<T> check = load(ws_.check + n * w);
      for (int j = begin; j < end; ++j) {
        const vec<T> raw = load(tiles_.ws.tile.scores + (j * panel.vectors + n) * w);
        check = fma(raw, broadcast(T(0)), check);
        store(out + j * w, raw * scale);
      }
      store(ws_.check + n * w, check);
      T* top = tiles_.ws.top + lane + n * w;
      store(top, max_or(tile.high[n], load(top)));
    }
  }

  /// Starts the searches of the lanes; NaN rows and rows without visible keys are idle.
  void start_searches(int lane, int lanes) {
    for (int i = 0; i < lanes; ++i) {
      const int r = lane + i;
      const T top = tiles_.ws.top[r];
      nan_[i] = tiles_.bad[r] || ws_.check[i] != T(0) || top == limits<T>::infinity;
      top_[i] = static_cast<double>(top);
      total_[i] = 0;
      cut_[i] = {limits<T>::infinity, 0};
      edge_[i] = support_edge<T>();
      search_[i] = threshold_search(0);
      idle_[i] = nan_[i] || top == limits<T>::lowest || r >= b_.rows || !wanted_[r];
      if (idle_[i]) continue;
      // The floor was rounded down; x is rounded once more.
      const double known = (static_cast<double>(floor_[r]) - top_[i]) * unit_ - threshold_error;
      search_[i] = threshold_search(known > -1 ? known : -1);
    }
  }

  void find_thresholds(int vectors) {
    bool searching[panel_vectors];
    for (bool& each : searching) each = true;
    for (int left = vectors; left > 0 && !tiles_.walk.poll();)
      for (int n = 0; n < vectors; ++n) {
        if (!searching[n]) continue;
        searching[n] = advance(n);
        left -= !searching[n];
      }
    for (int n = 0; n < vectors && !tiles_.walk.poll(); ++n) find_edges(n);
  }

  /// Finds the ends of the supports of a vector's rows, if they do not follow from the thresholds.
  void find_edges(int n) {
    for (int i = n * w; i < (n + 1) * w && b_.numbers.alpha > 2; ++i) {
      if (idle_[i]) continue;
      const candidates<T> list = list_above(i, search_[i].low - threshold_error);
      edge_[i] = edge_search<T>(list, b_.numbers.alpha, unit_, ws_.x).find(static_cast<T>(top_[i]));
    }
  }

  /// Keys of a lane whose x is above tau.
  candidates<T> list_above(int i, double tau) const {
    candidates<T> list = {ws_.list_value, ws_.list_key, 0};
    const T* t = kept(i / w, first_) + i % w;
    for (int64_t j = 0; j < ws_.keys; ++j, t += w) {
      list.value[list.count] = *t;
      list.key[list.count] = static_cast<uint32_t>(first_ + j - b_.key_begin);
      list.count += (static_cast<double>(*t) - top_[i]) * unit_ > tau;
    }
    return list;
  }

  /// Advances every search of a vector by one step; false if all have ended.
  bool advance(int n) {
    double mass[w], slope[w];
    with_power(b_.numbers.alpha, [&](const auto& power) { sum_lanes(n, power, mass, slope); });
    bool some = false;
    for (int r = 0; r < w; ++r) {
      threshold_search& search = search_[n * w + r];
      if (!idle_[n * w + r] && !search.done) search.advance({mass[r], slope[r]}, b_.numbers.alpha);
      some = some || (!idle_[n * w + r] && !search.done);
    }
    return some;
  }

  /// max(x - tau, 0) of wd lanes of kept scores: 0 in idle lanes.
  struct distance {
    vec<double> top, unit, minus_tau;
    ATTNSCALE_INLINE vec<double> operator()(const T* t) const {
      return max_or(fma(load_widened(t) - top, unit, minus_tau), broadcast(0.0));
    }
  };

  /// Weights of wd lanes before the division by their sums.
  struct lane_weights {
    vec<double> from, unit, distance, error, least, own;
    bool steep;  ///< alpha > 2

    template <class Power>
    ATTNSCALE_INLINE vec<double> operator()(vec<double> score, const Power& power) const {
      const vec<double> zero = broadcast(0.0);
      const vec<double> d = max_or(fma(score - from, unit, distance), zero), p = power(d) * d;
      if (!steep) return xsimd::select(d > error, p, zero);
      return xsimd::select(score > least, p, xsimd::select(score == least, own, zero));
    }
  };

  lane_weights weights_of(int first) const {
    const bool steep = b_.numbers.alpha > 2;
    double from[wd], at[wd], own[wd];
    for (int i = 0; i < wd; ++i) {
      const support_edge<T>& edge = edge_[first + i];
      from[i] = steep ? static_cast<double>(edge.least) : top_[first + i];
      at[i] = idle_[first + i] ? -limits<double>::infinity
              : steep          ? edge.distance
                               : -search_[first + i].tau;
      own[i] = edge.weight;
    }
    return {load(from), broadcast(unit_), load(at), broadcast(edge_error(b_.numbers.alpha)),
            load(from), load(own),        steep};
  }

  distance distance_of(int first) const {
    double minus_tau[wd];
    for (int i = 0; i < wd; ++i)
      minus_tau[i] = idle_[first + i] ? -limits<double>::infinity : -search_[first + i].tau;
    return {load(top_ + first), broadcast(unit_), load(minus_tau)};
  }

  template <class Power>
  void sum_lanes(int n, const Power& power, double* mass, double* slope) const {
    constexpr int parts = w / wd;
    distance d[parts];
    vec<double> m[parts], s[parts];
    for (int i = 0; i < parts; ++i) {
      d[i] = distance_of(n * w + i * wd);
      m[i] = s[i] = broadcast(0.0);
    }
    const T* t = kept(n, first_);
    for (int64_t j = 0; j < ws_.keys; ++j, t += w)
#pragma GCC unroll 2
      for (int i = 0; i < parts; ++i) {
        const vec<double> x = d[i](t + i * wd), share = power(x);
        m[i] = fma(share, x, m[i]);
        s[i] = s[i] + share;
      }
    for (int i = 0; i < parts; ++i) {
      store(mass + i * wd, m[i]);
      store(slope + i * wd, s[i]);
    }
  }

  void find_cuts(int vectors) {
    const int64_t k = b_.numbers.k;
    for (int n = 0; n < vectors; ++n) {
      cut_search<T> search(kept(n, first_), ws_.keys, k, top_ + n * w, idle_ + n * w);
      while (search.step() && !tiles_.walk.poll()) {
      }
      for (int r = 0; r < w; ++r)
        if (!idle_[n * w + r]) cut_[n * w + r] = search.found(r);
    }
  }

  // ---- statistics: as a list of its candidates ----

  void report_vector(int lane, int n) {
    const bool as_panel = b_.support && fill_panel(lane, n);
    for (int i = n * w; i < (n + 1) * w; ++i)
      if (lane + i < b_.rows && wanted_[lane + i])
        as_panel ? report_nothing(lane, i) : report(lane, i);
  }

  /// Writes the weights of a vector of rows into a panel for the taker of supports, if there is
  /// room. For alpha > 2 gradients need weights in full double precision.
  bool fill_panel(int lane, int n) {
    if (b_.numbers.alpha > 2 && b_.rule != normalizer::top_k) return false;
    void* const panel = b_.support->panel(b_.support->state, lane + n * w, w, sizeof(T));
    if (!panel) return false;
    T* const out = static_cast<T*>(panel) + (first_ - b_.key_begin) * w;
    if (!weigh_vector(n, first_, ws_.keys, out, w)) return true;
    const vec<T> factor = factor_of(n);
    for (int64_t j = 0; j < ws_.keys; ++j) store(out + j * w, load(out + j * w) * factor);
    return true;
  }

  /// Reports a row whose weights are in a panel as an empty list.
  void report_nothing(int lane, int i) {
    b_.report->top[lane + i] = nan_[i] ? __builtin_nan("") : 0;
    b_.support->take(b_.support->state, lane + i, nullptr, nullptr, 0);
  }

  void report(int lane, int i) {
    const int r = lane + i;
    candidates<T> list = {ws_.list_value, ws_.list_key, 0};
    double log_sum = 0;
    if (!idle_[i] && b_.rule == normalizer::top_k) {
      list = list_largest(i);
      log_sum = softmax_of_largest(list, b_.numbers.k, ws_.x, tiles_.ws.top[r]);
    } else if (!idle_[i]) {
      const double alpha = b_.numbers.alpha, tau = alpha > 2 ? search_[i].low : search_[i].tau;
      list = list_above(i, tau - threshold_error);
      for (int64_t k = 0; k < list.count; ++k)
        ws_.x[k] = (static_cast<double>(list.value[k]) - top_[i]) * unit_;
      entmax_weights(list, ws_.x, alpha, tau, edge_[i]);
    }
    report_row<T>(b_, {list, ws_.x, top_[i], nan_[i], log_sum}, r);
    b_.report->least[r] = tiles_.least_of(r, nan_[i]);
  }

  /// The k largest scores of a lane; ties go to the first keys.
  candidates<T> list_largest(int i) const {
    candidates<T> list = {ws_.list_value, ws_.list_key, 0};
    int64_t equals = cut_[i].equals;
    const T* t = kept(i / w, first_) + i % w;
    for (int64_t j = 0; j < ws_.keys; ++j, t += w) {
      const bool equal = *t == cut_[i].cut && equals > 0;
      equals -= equal;
      list.value[list.count] = *t;
      list.key[list.count] = static_cast<uint32_t>(first_ + j - b_.key_begin);
      list.count += equal || *t > cut_[i].cut;
    }
    return list;
  }

  // ---- values ----

  void add_values(query_panel panel) {
    const int vectors = panel.vectors, lanes = vectors * w;
    const output_panel<T> out = {ws_.recent, ws_.total, ws_.compensation, b_.value_dim * lanes};
    clear(out.recent, out.elements);
    if (out.total) clear(out.total, out.elements), clear(out.compensation, out.elements);
    int64_t tiles = 0;
    tiles_.walk.for_tiles([&](const key_tile& at) {
      const int64_t key = at.key;
      const int keys = at.keys;
      bool some = false;
      for (int n = 0; n < vectors; ++n)
        some |= weigh_vector(n, key, keys, tiles_.ws.tile.scores + n * w, lanes);
      if (!some) return;
      const row_view<T> v = finite_values(key, keys);
      add_weighted_values(v, keys, vectors, tiles_.ws.tile.scores, lanes, b_.value_dim, out.recent);
      if (out.total && ++tiles % tiles_per_carry == 0) carry(out);
    });
    if (tiles_.walk.stopped) return;
    gather(out);
    for (int n = 0; n < vectors; ++n) write(panel, n);
  }

  /// Values of the tile with 0 for elements that are not finite; these are recorded in `nonfinite`.
  row_view<T> finite_values(int64_t key, int keys) const {
    const row_view<T> v = view_rows(b_.value, key, keys, b_.value_dim, tiles_.ws.value_copy);
    if (!tiles_.has_nonfinite_values) return v;
    for (int j = 0; j < keys; ++j)
      for (int64_t c = 0; c < b_.value_dim; ++c) {
        const T x = v.data[j * v.stride + c];
        ws_.value_clean[j * b_.value_dim + c] = x - x == T(0) ? x : T(0);
      }
    return {ws_.value_clean, b_.value_dim};
  }

  /// Weights of vector n over some keys, before the division by their sum, one row of lanes per
  /// `step`; returns whether any is not 0.
  bool weigh_vector(int n, int64_t key, int64_t keys, T* out, int step) {
    return b_.rule == normalizer::top_k ? weigh_largest(n, key, keys, out, step)
                                        : weigh(n, key, keys, out, step);
  }

  bool weigh(int n, int64_t key, int64_t keys, T* place, int step) {
    constexpr int parts = w / wd;
    const vec<double> zero = broadcast(0.0);
    vec<double> most = zero;
    with_power(b_.numbers.alpha, [&](const auto& power) {
      for (int i = 0; i < parts; ++i) {
        const int first = n * w + i * wd;
        const lane_weights weight = weights_of(first);
        const T* t = kept(n, key) + i * wd;
        T* out = place + i * wd;
        vec<double> total = zero;
        for (int64_t j = 0; j < keys; ++j) {
          const vec<double> p = weight(load_widened(t + j * w), power);
          total = total + p;
          store_narrowed(out + j * step, p);
        }
        store(total_ + first, load(total_ + first) + total);
        most = max_or(most, total);
      }
    });
    return any<double>(most > zero);
  }

  bool weigh_largest(int n, int64_t key, int64_t keys, T* place, int step) {
    T cut[w], top[w];
    for (int r = 0; r < w; ++r) {
      cut[r] = cut_[n * w + r].cut;
      top[r] = static_cast<T>(top_[n * w + r]);
    }
    const vec<T> limit = load(cut), reference = load(top), zero = broadcast(T(0));
    vec<T> total = zero;
    const T* t = kept(n, key);
    for (int64_t j = 0; j < keys; ++j) {
      const vec<T> s = load(t + j * w), p = exp2(clamp_exponent(s - reference));
      T* out = place + j * step;
      vec<T> share = xsimd::select(s > limit, p, zero);
      if (any<T>(s == limit)) {
        store(out, share);
        T powers[w];
        store(powers, p);
        for (int r = 0; r < w; ++r)
          if (t[j * w + r] == cut[r] && cut_[n * w + r].equals > 0)
            out[r] = powers[r], --cut_[n * w + r].equals;
        share = load(out);
      }
      store(out, share);
      total = total + share;
    }
    add_to_double(total_ + n * w, total);
    return any<T>(total > zero);
  }

  /// 1 / the sums of the weights of a vector of rows.
  vec<T> factor_of(int n) const {
    T factor[w];
    for (int r = 0; r < w; ++r) {
      const double total = total_[n * w + r];
      factor[r] = static_cast<T>(total > 0 ? 1 / total : 0);
    }
    return load(factor);
  }

  void write(query_panel panel, int n) {
    T* rows = tiles_.ws.tile.rows;
    lanes_to_rows(ws_.recent + n * w, panel.vectors * w, b_.value_dim, factor_of(n), w, rows,
                  b_.value_dim);
    for (int r = 0; r < w; ++r) {
      const int row = panel.lane + n * w + r;
      if (row < b_.rows && wanted_[row])
        tiles_.write(row, nan_[n * w + r], rows + r * b_.value_dim);
    }
  }

  const attend_block& b_;
  sparse_tiles<T>& tiles_;
  const all_score_workspace<T>& ws_;
  const int64_t first_;  ///< key
  const bool* wanted_ = nullptr;
  const T* floor_ = nullptr;
  double unit_ = b_.numbers.alpha - 1;  ///< factor from scores to x
  double top_[block_rows<T>], total_[block_rows<T>];
  bool nan_[block_rows<T>], idle_[block_rows<T>];
  threshold_search search_[block_rows<T>];
  support_edge<T> edge_[block_rows<T>];
  lane_cut<T> cut_[block_rows<T>];
};

}  // namespace
