// SPDX-License-Identifier: BSD-3-Clause
//
// The streaming loop: for each tile of keys and each panel of queries: scores, running maximum,
// weights, sums, weighted values.
#pragma once

namespace {

template <class T>
struct attend_workspace {
  T *query, *scores, *bias, *table = nullptr, *near, *far = nullptr, *rest = nullptr;
  T *key_copy, *value_copy, *value_clean, *rows;
  T *scale, *reference, *top, *sigmoid_bias;

  attend_workspace(const attend_block& b, arena& a) {
    constexpr int64_t lanes = block_rows<T>;
    const int64_t columns = b.head_dim > b.value_dim ? b.head_dim : b.value_dim;
    const int64_t row_length = columns > max_tile_keys ? columns : max_tile_keys;
    query = a.take<T>(b.head_dim * lanes);
    scores = a.take<T>(max_tile_keys * panel_vectors * width<T>);
    bias = a.take<T>(max_tile_keys * panel_vectors * width<T>);
    if (has_tables(b)) table = a.take<T>(max_tile_keys * panel_vectors * width<T>);
    near = a.take<T>(b.value_dim * lanes);
    if (b.key_end - b.key_begin > tiles_per_carry * tile_keys) {
      far = a.take<T>(b.value_dim * lanes);
      rest = a.take<T>(b.value_dim * lanes);
    }
    key_copy = a.take<T>(is_direct<T>(b.key.layout) ? 0 : max_tile_keys * b.head_dim);
    value_copy = a.take<T>(is_direct<T>(b.value.layout) ? 0 : max_tile_keys * b.value_dim);
    value_clean = a.take<T>(max_tile_keys * b.value_dim);
    rows = a.take<T>(width<T> * row_length);
    scale = a.take<T>(lanes);
    reference = a.take<T>(lanes);
    top = a.take<T>(lanes);
    sigmoid_bias = a.take<T>(lanes);
  }
};

template <class T>
class attend_run {
 public:
  explicit attend_run(const attend_block& block)
      : b_(block), arena_{static_cast<char*>(block.scratch)}, ws_(block, arena_) {}

  void run() {
    prepare();
    key_range ranges[3];
    const int count = visible_ranges(b_, ranges);
    look_ahead(ranges, count);
    for (int i = 0; i < count; ++i)
      for (int64_t key = ranges[i].begin; key < ranges[i].end;) {
        if (b_.stop->poll(b_.stop->state)) return;
        const int keys = next_tile(ranges[i].end - key);
        tile(key, keys, ranges[i].masked);
        key += keys;
      }
    finish();
  }

 private:
  static constexpr int w = width<T>;

  panel_state<T> state(int lane) {
    return {ws_.scale + lane, ws_.reference + lane, ws_.top + lane};
  }

  template <int N>
  output_panel<T> output(int lane) {
    const int64_t at = lane * b_.value_dim;
    return {ws_.near + at, ws_.far ? ws_.far + at : nullptr, ws_.far ? ws_.rest + at : nullptr,
            b_.value_dim * N * w};
  }

  /// What is needed after the tiles without a mask, and is new to this core: the last keys and
  /// values, the output, and the next block's queries.
  void look_ahead(const key_range* ranges, int count) {
    if (count > 1 && ranges[count - 1].masked) {
      const int64_t key = ranges[count - 1].begin, keys = ranges[count - 1].end - key;
      ahead_[0] = {b_.key.data, b_.key.layout, key, keys, b_.head_dim};
      ahead_[1] = {b_.value.data, b_.value.layout, key, keys, b_.value_dim};
    }
    ahead_[2] = {b_.output, b_.output_layout, 0, b_.rows, b_.value_dim};
    ahead_[3] = {b_.query.data, b_.query.layout, b_.rows, b_.rows, b_.head_dim};
  }

  /// Row constants and sums. A negative scale is moved into the queries, so that the largest raw
  /// product is the largest score.
  void prepare() {
    T sign[block_rows<T>];
    bool negative = false;
    const T first_reference = first_reference_of<T>(b_.rule);
    for (int r = 0; r < block_rows<T>; ++r) {
      const double scale = r < b_.rows ? b_.scale[r * b_.scale_row] : 0.0;
      ws_.scale[r] = static_cast<T>((scale < 0 ? -scale : scale) * log2e);
      sign[r] = scale < 0 ? T(-1) : T(1);
      negative = negative || scale < 0;
      ws_.top[r] = limits<T>::lowest;
      ws_.reference[r] = first_reference;
      ws_.sigmoid_bias[r] = sigmoid_bias<T>(b_, r);
      b_.sums->weight[r] = b_.sums->first[r] = b_.sums->second[r] = b_.sums->squares[r] = 0;
      b_.sums->support[r] = 0;
      b_.sums->argmax[r] = -1;
    }
    for_panels<T>(b_.rows, [&](auto count, int lane) {
      constexpr int N = decltype(count)::value;
      T* panel = ws_.query + lane * b_.head_dim;
      fresh_[lane / w] = first_reference == limits<T>::lowest;
      pack_queries<T, N>(b_, lane, ws_.rows, panel);
      if (negative) {
        vec<T> factor[N];
        for (int n = 0; n < N; ++n) factor[n] = load(sign + lane + n * w);
        scale_lanes(panel, b_.head_dim * N * w, factor);
      }
      const output_panel<T> out = output<N>(lane);
      clear(out.near, out.elements);
      if (out.far) clear(out.far, out.elements), clear(out.rest, out.elements);
    });
  }

  void tile(int64_t key, int keys, bool masked) {
    const row_view<T> k = view_rows(b_.key, key, keys, b_.head_dim, ws_.key_copy);
    row_view<T> v = {nullptr, 0};
    if (b_.output) v = view_rows(b_.value, key, keys, b_.value_dim, ws_.value_copy);
    for_panels<T>(b_.rows, [&](auto count, int lane) {
      constexpr int N = decltype(count)::value;
      masked || b_.softcap > 0 ? masked_tile<N>(lane, key, keys, k, v)
                               : plain_tile<N>(lane, key, keys, k, v);
    });
    if (ws_.far && ++tiles_ % tiles_per_carry == 0)
      for_panels<T>(b_.rows,
                    [&](auto count, int lane) { carry(output<decltype(count)::value>(lane)); });
  }

  template <int N>
  void plain_tile(int lane, int64_t key, int keys, row_view<T> k, row_view<T> v) {
    const panel_state<T> s = state(lane);
    vector_keys<N> seen;
    for (int n = 0; n < N; ++n) seen.begin[n] = 0, seen.end[n] = keys;
    vec<T> most[N], low[N], high[N];
    dot_products<T, N>(k, keys, ws_.query + lane * b_.head_dim, N * w, b_.head_dim, ws_.scores,
                       most, low, [&] {
                         for (rows_ahead& rows : ahead_) rows.ask(), rows.ask();
                       });
    for (int n = 0; n < N; ++n) {
      poison_infinite(low[n], lane + n * w);
      high[n] = most[n] * load(s.scale + n * w);
    }
    if (b_.peak)
      track_argmax<T, N>(s, ws_.scores, key, seen, most, high, false, b_.sums->argmax + lane);
    weigh<N, false>(s, lane, seen, high, low);
    if (b_.output)
      add_weighted_values<T, N>(v, keys, ws_.scores, N * w, b_.value_dim, output<N>(lane).near);
  }

  template <int N>
  void masked_tile(int lane, int64_t key, int keys, row_view<T> k, row_view<T> v) {
    const vector_keys<N> seen = keys_of_vectors<T, N>(b_, lane, key, keys);
    if (seen.nothing() || !fill_bias<T, N>(b_, lane, key, keys, seen, ws_.rows, ws_.bias)) return;
    const panel_state<T> s = state(lane);
    strip strips[2 * N];
    const int n_strips = cut_strips<N>(seen, strips);
    for (int i = 0; i < n_strips; ++i)
      dot_strip(strips[i], k, ws_.query + lane * b_.head_dim, N * w);
    if (has_tables(b_))
      apply_tables<T, N>(b_, lane, key, keys, ws_.rows, ws_.table, ws_.scores, ws_.bias);
    vec<T> high[N];
    finish_scores<T, N>(s, ws_.bias, seen, static_cast<T>(b_.softcap), ws_.scores, ws_.scores,
                        high);
    if (b_.peak)
      track_argmax<T, N>(s, ws_.scores, key, seen, high, high, true, b_.sums->argmax + lane);
    weigh<N, true>(s, lane, seen, high, high);
    if (!b_.output) return;
    T* out = output<N>(lane).near;
    v = isolate_nonfinite<T, N>(v, keys, b_.value_dim, seen, ws_.bias, ws_.scores, out,
                                ws_.value_clean);
    for (int i = 0; i < n_strips; ++i) value_strip(strips[i], v, N * w, out);
  }

  /// scores <- weights, and their sums. `low` is the least raw product; not read if Masked.
  template <int N, bool Masked>
  void weigh(const panel_state<T>& s, int lane, const vector_keys<N>& seen, const vec<T> (&high)[N],
             const vec<T> (&low)[N]) {
    with_weights(b_.rule, [&](auto weights) {
      using W = decltype(weights);
      if constexpr (W::follows_top) update_reference<W, N>(s, lane, high);
      if constexpr (W::pointwise)
        weigh_pointwise<W, N, Masked>(s, lane, seen, high, low);
      else if (b_.moments)
        absorb_tile<T, N, Masked, true>(s, seen, ws_.scores, *b_.sums, lane);
      else
        absorb_tile<T, N, Masked, false>(s, seen, ws_.scores, *b_.sums, lane);
    });
  }

  template <class W, int N, bool Masked>
  void weigh_pointwise(const panel_state<T>& s, int lane, const vector_keys<N>& seen,
                       const vec<T> (&high)[N], const vec<T> (&low)[N]) {
    for (int n = 0; n < N; ++n) {
      const int at = n * w;
      store(s.top + at, max_or(high[n], load(s.top + at)));
      const vec<T> reference = load(s.reference + at);
      const pointwise_lanes<T> row{load(s.scale + at), load(ws_.sigmoid_bias + lane + at),
                                   reference, W::unit(reference)};
      const bool bounded = !Masked && is_bounded<T>(high[n], low[n] * row.scale, row.bias);
      if (b_.moments)
        count_positive(Masked ? broadcast(T(1)) : row.scale, seen.begin[n], seen.end[n], N * w,
                       ws_.scores + at, b_.sums->support + lane + at);
      absorb_pointwise<W, Masked>(bounded, row, seen.begin[n], seen.end[n], N * w, ws_.scores + at,
                                  b_.sums->weight + lane + at);
      if (b_.moments)
        sum_moments(seen.begin[n], seen.end[n], N * w, ws_.scores + at, b_.sums->first + lane + at,
                    b_.sums->squares + lane + at);
      poison_large<T>(high[n], b_.sums->weight + lane + at);
    }
  }

  /// Raw products of a strip's keys with its vectors; the rest of the tile is left as it is, its
  /// bias hides it.
  void dot_strip(const strip& s, row_view<T> k, const T* query, ptrdiff_t lanes) {
    with_vectors(s.last - s.first, [&](auto count) {
      constexpr int N = decltype(count)::value;
      vec<T> high[N], low[N];
      dot_products<T, N>({k.data + s.begin * k.stride, k.stride}, s.end - s.begin,
                         query + s.first * w, lanes, b_.head_dim,
                         ws_.scores + s.begin * lanes + s.first * w, high, low);
    });
  }

  void value_strip(const strip& s, row_view<T> v, ptrdiff_t lanes, T* out) {
    with_vectors(s.last - s.first, [&](auto count) {
      add_weighted_values<T, decltype(count)::value>(
          {v.data + s.begin * v.stride, v.stride}, s.end - s.begin,
          ws_.scores + s.begin * lanes + s.first * w, lanes, b_.value_dim, out + s.first * w);
    });
  }

  /// A visible raw score of -inf would have weight 0 and pass unseen: the row becomes NaN.
  void poison_infinite(vec<T> low, int lane) {
    if (!any<T>(low == broadcast(-limits<T>::infinity))) return;
    T lanes[w];
    store(lanes, low);
    for (int r = 0; r < w; ++r)
      if (lanes[r] == -limits<T>::infinity) b_.sums->weight[lane + r] = __builtin_nan("");
  }

  template <class W, int N>
  void update_reference(const panel_state<T>& s, int lane, const vec<T> (&high)[N]) {
    T before[N * w], factors[N * w];
    for (int n = 0; n < N; ++n) store(before + n * w, load(s.reference + n * w));
    vec<T> factor[N];
    if (!raise_reference<W, T, N>(s, high, factor)) return;
    if (fresh_[lane / w]) {
      fresh_[lane / w] = false;
      return;
    }
    for (int n = 0; n < N; ++n) store(factors + n * w, factor[n]);
    reference_move move;
    describe_move(before, s.reference, factors, N * w, move);
    rescale_sums<W>(*b_.sums, lane, N * w, move);
    if (b_.output) scale_output<T, N>(output<N>(lane), factor);
  }

  void finish() {
    for (int r = 0; r < b_.rows; ++r) {
      b_.sums->reference[r] = static_cast<double>(ws_.reference[r]);
      b_.sums->top[r] = static_cast<double>(ws_.top[r]);
      if (b_.top_weight)
        b_.sums->top_weight[r] = weight_of_top(b_, r, ws_.top[r] == limits<T>::lowest);
    }
    if (b_.output)
      for_panels<T>(b_.rows,
                    [&](auto count, int lane) { write_panel<decltype(count)::value>(lane); });
  }

  template <int N>
  void write_panel(int lane) {
    const output_panel<T> out = output<N>(lane);
    gather(out);
    for (int n = 0; n < N; ++n) {
      const int row = lane + n * w;
      const int rows = b_.rows - row < w ? b_.rows - row : w;
      T inverse[w];
      for (int r = 0; r < w; ++r) {
        inverse[r] = row + r < b_.rows ? static_cast<T>(output_factor(b_, row + r)) : T(0);
      }
      write_rows(out.near + n * w, N * w, load(inverse), row, rows);
    }
  }

  void write_rows(const T* panel, ptrdiff_t lanes, vec<T> factor, int row, int rows) {
    if (is_direct<T>(b_.output_layout)) {
      T* out = static_cast<T*>(b_.output) + row * b_.output_layout.row;
      lanes_to_rows(panel, lanes, b_.value_dim, factor, rows, out, b_.output_layout.row);
      return multiply_rows(out, b_.output_layout.row, row, rows);
    }
    lanes_to_rows(panel, lanes, b_.value_dim, factor, rows, ws_.rows, b_.value_dim);
    multiply_rows(ws_.rows, b_.value_dim, row, rows);
    for (int r = 0; r < rows; ++r)
      write_row(b_.output, b_.output_layout, row + r, b_.value_dim, ws_.rows + r * b_.value_dim);
  }

  void multiply_rows(T* out, ptrdiff_t stride, int row, int rows) {
    for (int r = 0; r < rows; ++r)
      multiply_by_power(out + r * stride, b_.value_dim, output_power(b_, row + r));
  }

  const attend_block& b_;
  arena arena_;
  attend_workspace<T> ws_;
  int64_t tiles_ = 0;
  rows_ahead ahead_[4];
  bool fresh_[block_rows<T>] = {};  ///< per panel: nothing is summed yet
};

}  // namespace
