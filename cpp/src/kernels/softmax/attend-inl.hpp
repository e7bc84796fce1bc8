// SPDX-License-Identifier: BSD-3-Clause
//
// The streaming loop. For each tile of keys and each panel of queries it computes scores, the
// running maximum, weights, sums and weighted values.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/numbers.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/softmax/online-inl.hpp"
#include "kernels/softmax/output-inl.hpp"
#include "kernels/softmax/plain_operands-inl.hpp"
#include "kernels/softmax/weights-inl.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::detail::attend_block;
using attnscale::detail::log2e;
using attnscale::detail::wanted_argmax;
using attnscale::detail::wanted_least;
using attnscale::detail::wanted_moments;
using attnscale::detail::wanted_top_weight;

template <class T, class Operands>
struct attend_workspace {
  Operands operands;
  T *recent, *total = nullptr, *compensation = nullptr;
  T *scale, *reference, *top, *least, *bias;

  attend_workspace(const attend_block& b, arena& a) : operands(b, a) {
    constexpr int64_t lanes = Operands::block_rows;
    const int64_t values = Operands::output_rows(b) * lanes;
    recent = a.take<T>(values);
    if (b.key_end - b.key_begin > tiles_per_carry * tile_keys) {
      total = a.take<T>(values);
      compensation = a.take<T>(values);
    }
    scale = a.take<T>(lanes);
    reference = a.take<T>(lanes);
    top = a.take<T>(lanes);
    least = a.take<T>(lanes);
    bias = a.take<T>(lanes);
  }
};

/// Operands: layout of queries, keys and values in the products; plain_operands or another class
/// with its functions.
template <class T, class Operands = plain_operands<T>>
class attend_run {
 public:
  explicit attend_run(const attend_block& block)
      : b_(block), arena_{static_cast<char*>(block.scratch)}, ws_(block, arena_), walk_(block) {}

  void run() {
    prepare();
    plan_prefetches(walk_.visible);
    walk_.for_tiles([&](const key_tile& at) { tile(at); });
    if (!walk_.stopped) finish();
  }

 private:
  static constexpr int w = width<T>;

  panel_state<T> state(int lane) {
    return {ws_.scale + lane, ws_.reference + lane, ws_.top + lane};
  }

  output_panel<T> output(query_panel panel) {
    const int64_t at = panel.lane * Operands::output_rows(b_);
    return {ws_.recent + at, ws_.total ? ws_.total + at : nullptr,
            ws_.total ? ws_.compensation + at : nullptr, b_.value_dim * panel.vectors * w};
  }

  /// Prefetches, without a mask, the data that is needed after the tiles and may not be in this
  /// core's cache: the last keys and values, the output, and the next block's queries.
  void plan_prefetches(const key_ranges& visible) {
    if (visible.count > 1 && visible.range[visible.count - 1].masked) {
      const key_range& last = visible.range[visible.count - 1];
      const int64_t key = last.begin, keys = last.end - key;
      ahead_.rows[0] = {b_.key.data, b_.key.layout, key, keys, b_.head_dim};
      ahead_.rows[1] = {b_.value.data, b_.value.layout, key, keys, b_.value_dim};
    }
    ahead_.rows[2] = {b_.output, b_.output_layout, 0, b_.rows, b_.value_dim};
    ahead_.rows[3] = {b_.query.data, b_.query.layout, b_.rows, b_.rows, b_.head_dim};
  }

  /// Prepares row constants and sums. A negative scale is moved into the queries, so that the
  /// largest raw product is the largest score.
  void prepare() {
    T sign[Operands::block_rows];
    bool negative = false;
    const T first_reference = first_reference_of<T>(b_.rule);
    const int lanes = (b_.rows + w - 1) / w * w;
    for (int r = 0; r < lanes; ++r) {
      const double scale = r < b_.rows ? b_.scale[r * b_.scale_row] : 0.0;
      ws_.scale[r] = static_cast<T>((scale < 0 ? -scale : scale) * log2e);
      sign[r] = scale < 0 ? T(-1) : T(1);
      negative = negative || scale < 0;
      ws_.top[r] = limits<T>::lowest;
      ws_.least[r] = limits<T>::infinity;
      ws_.reference[r] = first_reference;
      ws_.bias[r] = added_bias<T>(b_, r);
      for_each_sum([&](double* sum) { sum[r] = 0; }, *b_.sums);
      b_.sums->argmax[r] = -1;
    }
    for_panels<T>(b_.rows, [&](query_panel panel) {
      fresh_[panel.lane / w] = first_reference == limits<T>::lowest;
      ws_.operands.pack(panel);
      if (negative) ws_.operands.negate(panel, sign + panel.lane);
      const output_panel<T> out = output(panel);
      clear(out.recent, out.elements);
      if (out.total) clear(out.total, out.elements), clear(out.compensation, out.elements);
    });
  }

  void tile(const key_tile& at) {
    ws_.operands.read(at);
    for_panels<T>(b_.rows, [&](query_panel panel) { panel_tile(panel, at); });
    if (ws_.total && ++tiles_ % tiles_per_carry == 0)
      for_panels<T>(b_.rows, [&](query_panel panel) { carry(output(panel)); });
  }

  void panel_tile(query_panel panel, const key_tile& at) {
    tile_products<T> t;
    T* const scores = tile_.scores;
    const int lane = panel.lane;
    if (!ws_.operands.multiply(panel, at, t, &ahead_)) return;
    const panel_state<T> s = state(lane);
    vec<T> high[panel_vectors];
    if (t.biased)
      finish_scores(s, tile_.bias, t.seen, b_.form, scores, scores, high);
    else
      for (int n = 0; n < panel.vectors; ++n) {
        high[n] = t.most[n] * load(s.scale + n * w);
        propagate_infinite(t.least[n], high[n], lane + n * w);
      }
    if (b_.wanted & wanted_argmax)
      track_argmax(s, scores, at.key, t.seen, t.biased ? high : t.most, high, t.biased,
                   b_.sums->argmax + lane);
    if (b_.wanted & wanted_least) track_least(lane, t);
    t.biased ? weigh<true>(s, lane, t.seen, high, high)
             : weigh<false>(s, lane, t.seen, high, t.least);
    if (b_.output) ws_.operands.add_values(at, t, output(panel).recent);
  }

  /// Tracks the smallest score. Scores of a biased tile are finished; others are raw products with
  /// non-negative scales.
  void track_least(int lane, const tile_products<T>& t) {
    const vector_keys& seen = t.seen;
    for (int n = 0; n < seen.vectors; ++n) {
      T* const least = ws_.least + lane + n * w;
      const T* first = tile_.scores + (seen.begin[n] * seen.vectors + n) * w;
      const vec<T> low = t.biased
                             ? least_visible(first, seen.vectors * w, seen.end[n] - seen.begin[n])
                             : t.least[n] * load(ws_.scale + lane + n * w);
      store(least, min_or(low, load(least)));
    }
  }

  /// scores <- weights, with their sums. `low` is the smallest raw product; not read if Masked.
  template <bool Masked>
  void weigh(const panel_state<T>& s, int lane, const vector_keys& seen, const vec<T>* high,
             const vec<T>* low) {
    with_weights(b_.rule, [&](auto weights) {
      using W = decltype(weights);
      if constexpr (W::follows_top) update_reference<W>(s, {lane, seen.vectors}, high);
      if constexpr (!W::is_exponential)
        weigh_pointwise<W, Masked>(s, lane, seen, high, low);
      else if (Masked)
        absorb<Masked, weights_in_place>(s, lane, seen);
      else if (b_.output)
        absorb<Masked, typename Operands::kept_weights>(s, lane, seen);
      else
        absorb<Masked, no_weights>(s, lane, seen);
    });
  }

  template <bool Masked, class Keep>
  void absorb(const panel_state<T>& s, int lane, const vector_keys& seen) {
    if (b_.wanted & wanted_moments)
      absorb_tile<T, Masked, true, Keep>(s, seen, tile_.scores, *b_.sums, lane);
    else
      absorb_tile<T, Masked, false, Keep>(s, seen, tile_.scores, *b_.sums, lane);
  }

  template <class W, bool Masked>
  void weigh_pointwise(const panel_state<T>& s, int lane, const vector_keys& seen,
                       const vec<T>* high, const vec<T>* low) {
    const bool moments = b_.wanted & wanted_moments;
    const ptrdiff_t step = seen.vectors * w;
    for (int n = 0; n < seen.vectors; ++n) {
      const int at = n * w;
      store(s.top + at, max_or(high[n], load(s.top + at)));
      const vec<T> reference = load(s.reference + at);
      const pointwise_lanes<T> row{load(s.scale + at), load(ws_.bias + lane + at), reference,
                                   W::unit(reference)};
      const bool bounded = !Masked && is_bounded<T>(high[n], low[n] * row.scale, row.bias);
      T* const scores = tile_.scores + at;
      if (moments && W::counts_scores)
        count_positive(Masked ? broadcast(T(1)) : row.scale, seen.begin[n], seen.end[n], step,
                       scores, b_.sums->support + lane + at);
      absorb_pointwise<W, Masked>(bounded, row, seen.begin[n], seen.end[n], step, scores,
                                  b_.sums->weight + lane + at);
      if (moments && !W::counts_scores)
        count_positive(broadcast(T(1)), seen.begin[n], seen.end[n], step, scores,
                       b_.sums->support + lane + at);
      if (moments)
        sum_moments(seen.begin[n], seen.end[n], step, scores, b_.sums->first + lane + at,
                    b_.sums->squares + lane + at);
      propagate_large<T>(high[n], b_.sums->weight + lane + at);
    }
  }

  /// Turns rows with a visible raw score of -inf into NaN: its weight of 0 would hide it. The same
  /// holds for a row of exponentials whose scores are all below the type's range: it would look
  /// like a row without keys.
  void propagate_infinite(vec<T> low, vec<T> high, int lane) {
    const vec<T> nothing = broadcast(-limits<T>::infinity);
    if (any<T>(low == nothing)) spoil(low, lane);
    if (is_exponential(b_.rule) && any<T>(high == nothing)) spoil(high, lane);
  }

  /// Sets the rows whose lane is -inf to NaN.
  [[gnu::noinline]] void spoil(vec<T> scores, int lane) {
    T lanes[w];
    store(lanes, scores);
    for (int r = 0; r < w; ++r)
      if (lanes[r] == -limits<T>::infinity) b_.sums->weight[lane + r] = __builtin_nan("");
  }

  template <class W>
  void update_reference(const panel_state<T>& s, query_panel panel, const vec<T>* high) {
    T before[panel_vectors * w], factors[panel_vectors * w];
    const int vectors = panel.vectors;
    for (int n = 0; n < vectors; ++n) store(before + n * w, load(s.reference + n * w));
    vec<T> factor[panel_vectors];
    if (!raise_reference<W>(s, vectors, high, factor)) return;
    if (fresh_[panel.lane / w]) {
      fresh_[panel.lane / w] = false;
      return;
    }
    for (int n = 0; n < vectors; ++n) store(factors + n * w, factor[n]);
    reference_move move;
    set_move(before, s.reference, factors, vectors * w, move);
    rescale_sums<W>(*b_.sums, panel.lane, vectors * w, move);
    if (b_.output) scale_output(output(panel), vectors, factor);
  }

  void finish() {
    for (int r = 0; r < b_.rows; ++r) {
      b_.sums->reference[r] = static_cast<double>(ws_.reference[r]);
      b_.sums->top[r] = static_cast<double>(ws_.top[r]);
      b_.sums->least[r] = static_cast<double>(ws_.least[r]);
      if (b_.wanted & wanted_top_weight)
        b_.sums->top_weight[r] = weight_of_top(b_, r, ws_.top[r] == limits<T>::lowest);
    }
    if (b_.output) for_panels<T>(b_.rows, [&](query_panel panel) { write_panel(panel); });
  }

  void write_panel(query_panel panel) {
    const output_panel<T> out = output(panel);
    gather(out);
    for (int n = 0; n < panel.vectors; ++n) {
      const int row = panel.lane + n * w;
      const int rows = b_.rows - row < w ? b_.rows - row : w;
      T inverse[w];
      for (int r = 0; r < w; ++r) {
        inverse[r] = row + r < b_.rows ? static_cast<T>(output_factor(b_, row + r)) : T(0);
      }
      write_rows(out.recent + n * w, panel.vectors * w, load(inverse), row, rows);
    }
  }

  void write_rows(const T* panel, ptrdiff_t lanes, vec<T> factor, int row, int rows) {
    if (is_direct<T>(b_.output_layout)) {
      T* out = static_cast<T*>(b_.output) + row * b_.output_layout.row;
      lanes_to_rows(panel, lanes, b_.value_dim, factor, rows, out, b_.output_layout.row);
      return multiply_rows(out, b_.output_layout.row, row, rows);
    }
    lanes_to_rows(panel, lanes, b_.value_dim, factor, rows, tile_.rows, b_.value_dim);
    multiply_rows(tile_.rows, b_.value_dim, row, rows);
    for (int r = 0; r < rows; ++r)
      write_row(b_.output, b_.output_layout, row + r, b_.value_dim, tile_.rows + r * b_.value_dim);
  }

  void multiply_rows(T* out, ptrdiff_t stride, int row, int rows) {
    for (int r = 0; r < rows; ++r)
      multiply_by_power(out + r * stride, b_.value_dim, output_power(b_, row + r));
  }

  const attend_block& b_;
  arena arena_;
  attend_workspace<T, Operands> ws_;
  tile_workspace<T>& tile_ = ws_.operands.tile;
  tile_walk walk_;
  int64_t tiles_ = 0;
  prefetches ahead_;
  bool fresh_[Operands::block_rows] = {};  ///< per panel: nothing is summed yet
};

}  // namespace
