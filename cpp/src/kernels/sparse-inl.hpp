// SPDX-License-Identifier: BSD-3-Clause
//
// Entmax and top-k: q . k is streamed once, and each row keeps the few keys that may end above its
// threshold. Entmax: those within 1 / (alpha - 1) of the running maximum. A list that fills up is
// solved for the threshold of what it holds, which more keys can only raise, and keeps what is
// above. Rows that still need more room are scanned again with lists as long as the keys. Values
// are read for the keys with a positive weight alone.
#pragma once

namespace {

constexpr int list_capacity = 768;
static_assert(list_capacity >= 3 * max_tile_keys);

/// Lists begin an odd number of cache lines apart: at multiples of 4 KiB they would share a few
/// sets of the cache, where they all grow at once.
constexpr int64_t list_gap = 16;
constexpr int64_t list_stride = list_capacity + list_gap;

/// Entries of the long lists that a block makes room for, all lanes together.
constexpr int64_t long_list_entries = int64_t{1} << 18;

template <class T>
struct sparse_workspace {
  T *query, *single, *scores, *bias, *table = nullptr;
  T *key_copy, *value_copy, *rows, *scale, *top, *limit, *floor;
  T *list_value, *long_value, *taint;
  row_sum<T> sum;
  uint32_t *list_key, *long_key;
  double* x;
  int64_t long_lanes = 0, long_capacity, long_stride = 0;

  sparse_workspace(const attend_block& b, arena& a) {
    constexpr int64_t lanes = block_rows<T>;
    const int64_t columns = b.head_dim > b.value_dim ? b.head_dim : b.value_dim;
    const int64_t row_length = columns > max_tile_keys ? columns : max_tile_keys;
    query = a.take<T>(b.head_dim * lanes);
    single = a.take<T>(b.head_dim * width<T>);
    scores = a.take<T>(max_tile_keys * panel_vectors * width<T>);
    bias = a.take<T>(max_tile_keys * panel_vectors * width<T>);
    if (has_tables(b)) table = a.take<T>(max_tile_keys * panel_vectors * width<T>);
    key_copy = a.take<T>(is_direct<T>(b.key.layout) ? 0 : max_tile_keys * b.head_dim);
    value_copy = a.take<T>(is_direct<T>(b.value.layout) ? 0 : max_tile_keys * b.value_dim);
    rows = a.take<T>(width<T> * row_length);
    for (T** lane_array : {&scale, &top, &limit, &floor}) *lane_array = a.take<T>(lanes);
    const int64_t value_stride = (b.value_dim + width<T> - 1) / width<T> * width<T>;
    for (T** part : {&sum.near, &sum.far, &sum.copy}) *part = a.take<T>(value_stride);
    taint = a.take<T>(lanes * b.value_dim);
    list_value = a.take<T>(lanes * list_stride);
    list_key = a.take<uint32_t>(lanes * list_stride);
    take_long(b.key_end - b.key_begin, a);
  }

  void take_long(int64_t keys, arena& a) {
    long_capacity = list_room(keys);
    x = a.take<double>(padded(keys > list_capacity ? keys : list_capacity));
    if (keys <= list_capacity) return;
    long_lanes = long_list_entries / keys;
    if (long_lanes < 1) long_lanes = 1;
    if (long_lanes > width<T>) long_lanes = width<T>;
    long_stride = (long_capacity / list_gap | 1) * list_gap + 2 * list_gap;
    long_value = a.take<T>(long_lanes * long_stride);
    long_key = a.take<uint32_t>(long_lanes * long_stride);
  }
};

template <class T>
class sparse_run {
 public:
  explicit sparse_run(const attend_block& block)
      : b_(block), arena_{static_cast<char*>(block.scratch)}, ws_(block, arena_) {
    top_k_ = block.rule == normalizer::top_k;
    unit_ = (block.order - 1) * ln2;
    gap_ = top_k_ ? limits<T>::infinity : static_cast<T>(1 / unit_);
    // More than a short list can hold, unless there are not that many keys.
    long_k_ = top_k_ && ws_.long_lanes > 0 && block.order > list_capacity - max_tile_keys;
  }

  void run() {
    n_ranges_ = visible_ranges(b_, ranges_);
    prepare();
    look_at_values_ = b_.output != nullptr;
    if (!long_k_) {
      capacity_ = list_capacity;
      for_tiles([&](int64_t key, int keys, row_view<T> k, bool masked) {
        for_panels<T>(b_.rows, [&](auto count, int lane) {
          tile<decltype(count)::value>(lane, key, keys, k, masked, ws_.query + lane * b_.head_dim);
        });
      });
      look_at_values_ = false;
      for (int r = 0; r < b_.rows && !stopped_; ++r)
        if (!needs_room_[r]) finish(r);
    }
    for (int lane = 0; lane < b_.rows && !stopped_; lane += w) scan_again(lane);
  }

 private:
  static constexpr int w = width<T>;
  static constexpr int all_steps = 200;
  static constexpr double rounding = sizeof(T) == 4 ? 1.2e-7 : 2.3e-16;

  /// Row constants, and the queries with the signs of their scales.
  void prepare() {
    for (int r = 0; r < block_rows<T>; ++r) {
      const double scale = r < b_.rows ? b_.scale[r * b_.scale_row] : 0.0;
      ws_.scale[r] = static_cast<T>((scale < 0 ? -scale : scale) * log2e);
      needs_room_[r] = long_k_ && r < b_.rows;
      bad_[r] = false;
      open_list(r, ws_.list_value + r * list_stride, ws_.list_key + r * list_stride);
      active_[r] = r < b_.rows;
    }
    for_panels<T>(b_.rows, [&](auto count, int lane) {
      pack<decltype(count)::value>(lane, ws_.query + lane * b_.head_dim);
    });
  }

  void open_list(int r, T* value, uint32_t* key) {
    list_[r] = {value, key, 0};
    ws_.top[r] = ws_.floor[r] = limits<T>::lowest;
    shrink_at_[r] = first_shrink();
  }

  template <int N>
  void pack(int lane, T* panel) {
    pack_queries<T, N>(b_, lane, ws_.rows, panel);
    for (int i = 0; i < N * w; ++i) {
      if (lane + i >= b_.rows || !(b_.scale[(lane + i) * b_.scale_row] < 0)) continue;
      for (int64_t c = 0; c < b_.head_dim; ++c) panel[c * N * w + i] = -panel[c * N * w + i];
    }
  }

  /// f(key, keys, rows of the tile, masked) for every tile that any row may see.
  template <class F>
  void for_tiles(F&& f) {
    for (int i = 0; i < n_ranges_; ++i)
      for (int64_t key = ranges_[i].begin; key < ranges_[i].end;) {
        stopped_ = stopped_ || b_.stop->poll(b_.stop->state);
        if (stopped_) return;
        const int keys = next_tile(ranges_[i].end - key);
        if (look_at_values_) find_nonfinite(key, keys);
        f(key, keys, view_rows(b_.key, key, keys, b_.head_dim, ws_.key_copy),
          ranges_[i].masked || b_.softcap > 0);
        key += keys;
      }
  }

  template <int N>
  void tile(int lane, int64_t key, int keys, row_view<T> k, bool masked, const T* query) {
    vector_keys<N> seen;
    for (int n = 0; n < N; ++n) seen.begin[n] = 0, seen.end[n] = keys;
    if (masked) seen = keys_of_vectors<T, N>(b_, lane, key, keys);
    if (masked &&
        (seen.nothing() || !fill_bias<T, N>(b_, lane, key, keys, seen, ws_.rows, ws_.bias)))
      return;
    if (nonfinite_) spread_nonfinite<N>(lane, keys, seen, masked);
    vec<T> most[N], low[N], high[N];
    dot_products<T, N>(k, keys, query, N * w, b_.head_dim, ws_.scores, most, low);
    const panel_state<T> state{ws_.scale + lane, nullptr, ws_.top + lane};
    if (masked) {
      if (has_tables(b_))
        apply_tables<T, N>(b_, lane, key, keys, ws_.rows, ws_.table, ws_.scores, ws_.bias);
      finish_scores<T, N>(state, ws_.bias, seen, static_cast<T>(b_.softcap), ws_.scores, ws_.scores,
                          high);
    } else {
      for (int n = 0; n < N; ++n) {
        mark_infinite(low[n], lane + n * w);
        high[n] = most[n] * load(state.scale + n * w);
      }
    }
    for (int r = lane; r < lane + N * w; ++r) make_room(r, keys);
    for (int n = 0; n < N; ++n) raise_limit(lane + n * w, high[n]);
    masked ? collect<N, true>(lane, key, seen) : collect<N, false>(lane, key, seen);
  }

  /// A visible score of -inf is below every threshold, but its row is NaN.
  void mark_infinite(vec<T> low, int lane) {
    if (!any<T>(low == broadcast(-limits<T>::infinity))) return;
    T lanes[w];
    store(lanes, low);
    for (int r = 0; r < w; ++r) bad_[lane + r] = bad_[lane + r] || lanes[r] == -limits<T>::infinity;
  }

  void raise_limit(int lane, vec<T> high) {
    const vec<T> top = max_or(high, load(ws_.top + lane));
    store(ws_.top + lane, top);
    vec<T> within = broadcast(limits<T>::lowest);
    if (!top_k_) within = top - fma(xsimd::abs(top), broadcast(T(4 * rounding)), broadcast(gap_));
    store(ws_.limit + lane, max_or(within, load(ws_.floor + lane)));
  }

  /// Appends the keys of the tile whose score is above the limit of their lane, or is NaN.
  template <int N, bool Finished>
  void collect(int lane, int64_t key, const vector_keys<N>& seen) {
    for (int n = 0; n < N; ++n) {
      const int first = lane + n * w;
      unsigned open = 0;
      for (int r = 0; r < w; ++r) open |= active_[first + r] ? 1u << r : 0u;
      if (open == 0) continue;
      const vec<T> limit = load(ws_.limit + first), scale = load(ws_.scale + first);
      for (int j = seen.begin[n]; j < seen.end[n]; ++j) {
        const vec<T> raw = load(ws_.scores + (j * N + n) * w);
        const vec<T> t = Finished ? raw : raw * scale;
        const unsigned above = not_below(t, limit) & open;
        if (above != 0) append(first, above, t, static_cast<uint32_t>(key + j - b_.key_begin));
      }
    }
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

  /// Room for a tile of keys in a row's list; a row that has none is left for scan_again. Lists
  /// shrink early: their threshold lets fewer keys in.
  void make_room(int r, int keys) {
    if (!active_[r]) return;
    candidates<T>& list = list_[r];
    const bool full = list.count + keys > capacity_;
    if (!full && list.count <= shrink_at_[r]) return;
    if (!has_nan(list)) top_k_ ? shrink_to_largest(r) : shrink_to_support(r, full);
    shrink_at_[r] = first_shrink() + 2 * list.count;
    if (list.count + keys <= capacity_) return;
    needs_room_[r] = true;
    active_[r] = false;
  }

  int64_t first_shrink() const { return 64 + (top_k_ ? static_cast<int64_t>(b_.order) : 0); }

  void shrink_to_largest(int r) {
    if (static_cast<double>(list_[r].count) <= b_.order) return;
    // An equal score that comes later is not among the largest.
    ws_.floor[r] = keep_largest(list_[r], static_cast<int64_t>(b_.order));
  }

  /// All steps where the list is full; else a few, for a lower bound.
  void shrink_to_support(int r, bool full) {
    if (!(ws_.top[r] < limits<T>::infinity)) return;
    const double margin = 1e-12, tau = threshold(r, full ? all_steps : 3) - margin;
    keep_above(list_[r], ws_.x, tau);
    // Rounded down, so that no key above the threshold is lost.
    const double floor = static_cast<double>(ws_.top[r]) + tau / unit_;
    const double size = floor < 0 ? -floor : floor;
    ws_.floor[r] = static_cast<T>(floor - 4 * rounding * size);
  }

  /// The threshold of a row's list, for x, from what is known of it.
  double threshold(int r, int steps) {
    fill_x(r);
    const double known =
        (static_cast<double>(ws_.floor[r]) - static_cast<double>(ws_.top[r])) * unit_ - 1e-12;
    return entmax_threshold(ws_.x, list_[r].count, b_.order, known > -1 ? known : -1, steps);
  }

  /// x = (alpha - 1) (score - largest score), padded with -infinity.
  void fill_x(int r) {
    const candidates<T>& list = list_[r];
    const auto top = static_cast<double>(ws_.top[r]);
    for (int64_t i = 0; i < list.count; ++i)
      ws_.x[i] = (static_cast<double>(list.value[i]) - top) * unit_;
    for (int64_t i = list.count; i < padded(list.count); ++i) ws_.x[i] = -limits<double>::infinity;
  }

  /// The rows of one vector that ran out of room, a few at a time, with a list entry for each key.
  void scan_again(int lane) {
    for (int r = lane; r < lane + w && r < b_.rows;) {
      int taken = 0, opened[w];
      for (int i = lane; i < lane + w; ++i) active_[i] = false;
      for (; r < lane + w && r < b_.rows && taken < ws_.long_lanes; ++r) {
        if (!needs_room_[r]) continue;
        open_list(r, ws_.long_value + taken * ws_.long_stride,
                  ws_.long_key + taken * ws_.long_stride);
        active_[r] = true;
        opened[taken++] = r;
      }
      if (taken == 0) return;
      capacity_ = ws_.long_capacity;
      look_at_values_ = long_k_ && b_.output;
      pack<1>(lane, ws_.single);
      for_tiles([&](int64_t key, int keys, row_view<T> k, bool masked) {
        tile<1>(lane, key, keys, k, masked, ws_.single);
      });
      for (int i = 0; i < taken && !stopped_; ++i) finish(opened[i]);
    }
  }

  // ---- values that are not finite: rows that see them are NaN, also where their weight is 0 ----

  void find_nonfinite(int64_t key, int keys) {
    const row_view<T> v = view_rows(b_.value, key, keys, b_.value_dim, ws_.value_copy);
    nonfinite_ = false;
    for (int j = 0; j < keys; ++j) {
      nonfinite_key_[j] = has_nonfinite(v.data + j * v.stride, b_.value_dim);
      nonfinite_ = nonfinite_ || nonfinite_key_[j];
    }
    value_ = v;
    if (!nonfinite_ || tainted_) return;
    tainted_ = true;
    for (int64_t i = 0; i < block_rows<T> * b_.value_dim; ++i) ws_.taint[i] = T(0);
  }

  template <int N>
  void spread_nonfinite(int lane, int keys, const vector_keys<N>& seen, bool masked) {
    if (!look_at_values_) return;
    for (int j = 0; j < keys; ++j)
      for (int i = 0; nonfinite_key_[j] && i < N * w; ++i) {
        const bool inside = seen.begin[i / w] <= j && j < seen.end[i / w];
        if (!inside || (masked && ws_.bias[j * N * w + i] == hidden<T>)) continue;
        T* taint = ws_.taint + (lane + i) * b_.value_dim;
        const T* v = value_.data + j * value_.stride;
        for (int64_t c = 0; c < b_.value_dim; ++c) taint[c] += v[c] * T(0);
      }
  }

  void finish(int r) {
    candidates<T>& list = list_[r];
    const bool nan = bad_[r] || has_nan(list) || ws_.top[r] == limits<T>::infinity;
    if (nan) list.count = 0;
    double log_sum = 0;
    if (list.count > 0 && top_k_) log_sum = softmax_of_largest(list, b_.order, ws_.x, ws_.top[r]);
    if (list.count > 0 && !top_k_) {
      const double tau = threshold(r, all_steps);
      keep_above(list, ws_.x, tau);
      entmax_weights(ws_.x, list.count, b_.order, tau);
    }
    if (b_.report)
      report_row(list, ws_.x, static_cast<double>(ws_.top[r]), nan, log_sum, b_.key_begin, r,
                 *b_.report);
    if (!b_.output) return;
    add_values_of(b_, list, ws_.x, ws_.sum);
    for (int64_t c = 0; nan && c < b_.value_dim; ++c)
      ws_.sum.far[c] = static_cast<T>(__builtin_nan(""));
    for (int64_t c = 0; tainted_ && c < b_.value_dim; ++c)
      ws_.sum.far[c] += ws_.taint[r * b_.value_dim + c];
    write_row(b_.output, b_.output_layout, r, b_.value_dim, ws_.sum.far);
  }

  const attend_block& b_;
  arena arena_;
  sparse_workspace<T> ws_;
  bool top_k_, long_k_, look_at_values_ = false, stopped_ = false;
  bool nonfinite_ = false, tainted_ = false;
  double unit_;  ///< (alpha - 1) ln 2: from scores in base 2 to x
  T gap_;        ///< 1 / (alpha - 1) in base 2
  int64_t capacity_ = 0;
  key_range ranges_[3];
  int n_ranges_ = 0;
  candidates<T> list_[block_rows<T>];
  int64_t shrink_at_[block_rows<T>];
  bool active_[block_rows<T>], needs_room_[block_rows<T>], bad_[block_rows<T>];
  bool nonfinite_key_[max_tile_keys];
  row_view<T> value_ = {nullptr, 0};
};

}  // namespace
