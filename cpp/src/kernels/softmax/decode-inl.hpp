// SPDX-License-Identifier: BSD-3-Clause
//
// Attention of a few queries (decoding): memory-bound, so keys and values are read once, in order,
// with the channels in the lanes. The panels of attend would leave most lanes empty.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/exp-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/softmax/decode_scores-inl.hpp"
#include "kernels/softmax/online-inl.hpp"
#include "kernels/softmax/output-inl.hpp"
#include "kernels/softmax/stored_rows-inl.hpp"
#include "kernels/softmax/weights-inl.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::detail::attend_block;
using attnscale::detail::wanted_argmax;
using attnscale::detail::wanted_least;
using attnscale::detail::wanted_moments;
using attnscale::detail::wanted_top_weight;
using attnscale::detail::weight_sums;

/// State of one query.
template <class T>
struct decode_row : weight_sums<width<T>> {
  T reference, bias;
  T top[width<T>], least[width<T>];  ///< like the sums: one lane for each key of a vector
};

template <class T>
struct decode_workspace {
  decode_score_workspace<T> score;
  T *weights, *recent, *total = nullptr, *compensation = nullptr, *row;
  int64_t value_stride;

  decode_workspace(const attend_block& b, arena& a) : score(b, a) {
    constexpr int w = width<T>;
    value_stride = (b.value_dim + w - 1) / w * w;
    weights = a.take<T>(decode_keys);
    recent = a.take<T>(decode_rows * value_stride);
    if (b.key_end - b.key_begin > tiles_per_carry * decode_keys) {
      total = a.take<T>(decode_rows * value_stride);
      compensation = a.take<T>(decode_rows * value_stride);
    }
    row = a.take<T>(value_stride);
  }
};

/// Sums of weight * value[0 .. M * width): even and odd keys in two chains per vector, which hide
/// the latency of a multiply-add.
template <class T, int M>
struct value_sums {
  vec<T> chain[2][M];

  value_sums() {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) chain[0][m] = chain[1][m] = broadcast(T(0));
  }

  template <class Elements>
  ATTNSCALE_INLINE void add(int odd, T weight, const typename Elements::element* value) {
    const vec<T> p = broadcast(weight);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
      chain[odd][m] = fma(Elements::read(value + m * width<T>), p, chain[odd][m]);
  }

  ATTNSCALE_INLINE void add_to(T* out) const {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
      store(out + m * width<T>, load(out + m * width<T>) + (chain[0][m] + chain[1][m]));
  }
};

/// out[0 .. M * width) += sum_j weight[j] * value[j]; masked keys are not read.
template <class Elements, int M, class T>
inline void add_rows(row_view<typename Elements::element> value, int keys, const T* weights,
                     const T* bias, ptrdiff_t ahead, T* out) {
  using element = typename Elements::element;
  value_sums<T, M> sums;
  for (int j = 0; j < keys; j += 2)
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      if (j + i >= keys || (bias && bias[j + i] == masked_score<T>)) continue;
      const element* v = value.data + (j + i) * value.stride;
      ask_for<M * width<T>>(v, ahead);
      sums.template add<Elements>(i, weights[j + i], v);
    }
  sums.add_to(out);
}

template <class X>
inline X add_lanes(const X* lanes, int count) {
  X sum = X(0);
  for (int i = 0; i < count; ++i) sum += lanes[i];
  return sum;
}

template <class T>
class decode_run {
 public:
  explicit decode_run(const attend_block& block)
      : b_(block),
        arena_{static_cast<char*>(block.scratch)},
        ws_(block, arena_),
        walk_(block),
        scores_(block, ws_.score) {}

  void run() {
    prepare();
    // Inlined: as a function it would reload the block's fields for every tile.
    walk_.for_tiles([&](const key_tile& at) ATTNSCALE_INLINE_LAMBDA { tile(at); }, decode_keys);
    add_waiting();
    if (!walk_.stopped) finish();
  }

 private:
  static constexpr int w = width<T>;
  static constexpr int part = 4 * w;  ///< channels of an output that are summed in registers

  output_panel<T> output(int row) {
    const int64_t at = row * ws_.value_stride;
    return {ws_.recent + at, ws_.total ? ws_.total + at : nullptr,
            ws_.total ? ws_.compensation + at : nullptr, ws_.value_stride};
  }

  void prepare() {
    for (int r = 0; r < b_.rows; ++r) {
      decode_row<T>& row = row_[r];
      row.reference = first_reference_of<T>(b_.rule);
      row.bias = added_bias<T>(b_, r);
      for (int i = 0; i < w; ++i) {
        row.top[i] = limits<T>::lowest;
        row.least[i] = limits<T>::infinity;
        for_each_sum([&](double* sum) { sum[i] = 0; }, row);
      }
      b_.sums->argmax[r] = -1;
      const output_panel<T> out = output(r);
      clear(out.recent, out.elements);
      if (out.total) clear(out.total, out.elements), clear(out.compensation, out.elements);
    }
  }

  ATTNSCALE_INLINE void tile(const key_tile& at) {
    const int64_t key = at.key;
    const int keys = at.keys;
    const stored_rows k = view_stored(b_.key, b_.rows, key, keys, b_.head_dim, ws_.score.key_copy);
    stored_rows v = {nullptr, 0, native<T>};
    if (b_.output)
      v = view_stored(b_.value, b_.rows, key, keys, b_.value_dim, ws_.score.value_copy);
    const bool waits = may_wait(at), beside = waits && waiting_.data;
    if (!beside) add_waiting();
    for (int r = 0; r < b_.rows; ++r) {
      vec<T> high;
      if (beside)
        high = score_beside_waiting(at, k);
      else if (!scores_.score(r, at, k, high))
        continue;
      if (b_.wanted & wanted_argmax) track_argmax(r, high, key, keys);
      if (b_.wanted & wanted_least) track_least(r, keys);
      weigh(r, high, keys);
      if (waits) {
        wait(v);
      } else if (b_.output) {
        add_values(r, v, keys, ws_.score.scores, at.masked ? ws_.score.bias : nullptr);
        carry_if_due(r, tiles_ + 1);
      }
    }
    ++tiles_;
  }

  /// Whether the values of a tile may wait until the next one is scored: memory is then read
  /// without a pause, keys and values in turn (measured on Zen 5: 0.83 to 0.87 of the time of keys
  /// first, then values).
  bool may_wait(const key_tile& at) const {
    return b_.output && b_.rows == 1 && !at.masked && at.keys == decode_keys &&
           b_.value_dim >= part && b_.key.layout.type == b_.value.layout.type &&
           is_read_in_place<T>(b_.key, 1) && is_read_in_place<T>(b_.value, 1);
  }

  void wait(const stored_rows& v) {
    for (int j = 0; j < decode_keys; j += w) store(ws_.weights + j, load(ws_.score.scores + j));
    waiting_ = v;
  }

  /// Scores of a tile, interleaved with the waiting values: each key is followed by part of a row
  /// of values, or of two rows, so that keys and values end together.
  ATTNSCALE_INLINE vec<T> score_beside_waiting(const key_tile& at, const stored_rows& rows) {
    const int parts = b_.value_dim >= 2 * part ? 2 : 1;
    vec<T> high;
    with_elements<T>(rows, [&](auto elements, auto k) ATTNSCALE_INLINE_LAMBDA {
      high = score_beside<decltype(elements)>(at, k, parts);
    });
    add_values(0, waiting_, decode_keys, ws_.weights, nullptr, parts * part);
    carry_if_due(0, tiles_);
    return high;
  }

  template <class Elements>
  ATTNSCALE_INLINE vec<T> score_beside(const key_tile& at, row_view<typename Elements::element> k,
                                       int parts) {
    using element = typename Elements::element;
    const auto* const first = static_cast<const element*>(waiting_.data);
    const ptrdiff_t stride = waiting_.stride, ahead = page_ahead<element>(b_, stride, part);
    const element* value = first;
    const T* weight = ws_.weights;
    T* out = output(0).recent;
    value_sums<T, part / w> sums;
    const auto add = [&](int odd) ATTNSCALE_INLINE_LAMBDA {
      ask_for<part>(value, ahead);
      sums.template add<Elements>(odd, *weight++, value);
      value += stride;
    };
    return scores_.template score_beside<Elements>(at, k, [&](int odd) ATTNSCALE_INLINE_LAMBDA {
      if (parts == 2)
        add(0), add(1);
      else
        add(odd);
      if (weight != ws_.weights + decode_keys) return;
      sums.add_to(out);
      sums = {};
      out += part;
      value = first + part;
      weight = ws_.weights;
    });
  }

  void add_waiting() {
    if (!waiting_.data) return;
    add_values(0, waiting_, decode_keys, ws_.weights, nullptr);
    carry_if_due(0, tiles_);
    waiting_.data = nullptr;
  }

  void carry_if_due(int r, int64_t tiles) {
    if (ws_.total && tiles % tiles_per_carry == 0) carry(output(r));
  }

  void track_argmax(int r, vec<T> high, int64_t key, int keys) {
    T lanes[w];
    store(lanes, high);
    const T tile_top = largest(lanes);
    if (!(tile_top > largest(row_[r].top))) return;
    for (int j = keys - 1; j >= 0; --j)
      if (ws_.score.scores[j] == tile_top) b_.sums->argmax[r] = key + j;
  }

  void track_least(int r, int keys) {
    T* const least = row_[r].least;
    store(least, min_or(least_visible(ws_.score.scores, w, (keys + w - 1) / w), load(least)));
  }

  static T smallest(const T* lanes) {
    T low = lanes[0];
    for (int i = 1; i < w; ++i) low = lanes[i] < low ? lanes[i] : low;
    return low;
  }

  static T largest(const T* lanes) {
    T high = lanes[0];
    for (int i = 1; i < w; ++i) high = lanes[i] > high ? lanes[i] : high;
    return high;
  }

  /// Raises the row's reference if some lane is too far above it (see online-inl.hpp).
  template <class W>
  void raise(int r, vec<T> high) {
    decode_row<T>& row = row_[r];
    if (!any<T>(W::is_behind(broadcast(row.reference), high))) return;
    const T before = row.reference;
    row.reference = W::reference_at(largest(row.top));
    if (before == limits<T>::lowest) return;  // nothing is summed yet
    const vec<T> factor = exp2(clamp_exponent(broadcast(before - row.reference)));
    T lanes[w];
    store(lanes, factor);
    reference_move move;
    set_move(&before, &row.reference, lanes, 1, move);
    for (int i = 0; i < w; ++i) move_sums(row, i, move.factor[0], move.shift[0] * W::moment_unit);
    if (b_.output) scale_output(output(r), 1, &factor);
  }

  /// scores <- weights, with their sums.
  void weigh(int r, vec<T> high, int keys) {
    decode_row<T>& row = row_[r];
    store(row.top, max_or(high, load(row.top)));
    with_weights(b_.rule, [&](auto weights) {
      using W = decltype(weights);
      if constexpr (W::follows_top) raise<W>(r, high);
      if constexpr (!W::is_exponential)
        weigh_pointwise<W>(row, keys);
      else
        b_.wanted& wanted_moments ? absorb_row<true>(row, keys) : absorb_row<false>(row, keys);
    });
  }

  template <class W>
  void weigh_pointwise(decode_row<T>& row, int keys) {
    const vec<T> reference = broadcast(row.reference);
    const pointwise_lanes<T> lanes{broadcast(T(1)), broadcast(row.bias), reference,
                                   W::unit(reference)};
    const int vectors = (keys + w - 1) / w;
    const bool moments = b_.wanted & wanted_moments;
    if (moments && W::counts_scores)
      count_positive(lanes.scale, 0, vectors, w, ws_.score.scores, row.support);
    absorb_pointwise<W, true>(false, lanes, 0, vectors, w, ws_.score.scores, row.weight);
    if (moments && !W::counts_scores)
      count_positive(lanes.scale, 0, vectors, w, ws_.score.scores, row.support);
    if (moments) sum_moments(0, vectors, w, ws_.score.scores, row.first, row.squares);
  }

  template <bool Moments>
  void absorb_row(decode_row<T>& row, int keys) {
    const vec<T> one = broadcast(T(1)), reference = broadcast(row.reference);
    lane_sums<T> sums;
    lane_moments<T> moments;
    for (int j = 0; j < keys; j += w)
      store(ws_.score.scores + j,
            absorb<T, true, Moments>(load(ws_.score.scores + j), one, reference, sums, moments));
    add_lanes_to<Moments>(row, 0, sums, moments);
  }

  /// Output of row r += weights * values, from channel `first` on.
  void add_values(int r, const stored_rows& rows, int keys, const T* weights, const T* bias,
                  int64_t first = 0) {
    T* out = output(r).recent;
    const bool from_memory = r == 0 && is_read_in_place<T>(b_.value, b_.rows);
    with_elements<T>(rows, [&](auto elements, auto v) ATTNSCALE_INLINE_LAMBDA {
      using Elements = decltype(elements);
      const ptrdiff_t ahead =
          from_memory ? page_ahead<typename Elements::element>(b_, v.stride, part) : 0;
      int64_t c = first;
      for (; c + part <= b_.value_dim; c += part)
        add_rows<Elements, part / w>({v.data + c, v.stride}, keys, weights, bias, ahead, out + c);
      for (; c + w <= b_.value_dim; c += w)
        add_rows<Elements, 1>({v.data + c, v.stride}, keys, weights, bias, ahead, out + c);
      for (; c < b_.value_dim; ++c) {
        T sum = T(0);
        for (int j = 0; j < keys; ++j)
          if (!bias || bias[j] != masked_score<T>)
            sum += weights[j] * Elements::value(v.data[j * v.stride + c]);
        out[c] += sum;
      }
    });
  }

  void finish() {
    for (int r = 0; r < b_.rows; ++r) {
      const decode_row<T>& row = row_[r];
      b_.sums->reference[r] = static_cast<double>(row.reference);
      b_.sums->top[r] = static_cast<double>(largest(row.top));
      b_.sums->least[r] = static_cast<double>(smallest(row.least));
      for_each_sum([&](double* sum, const double* lanes) { sum[r] = add_lanes(lanes, w); },
                   *b_.sums, row);
      if (b_.wanted & wanted_top_weight)
        b_.sums->top_weight[r] = weight_of_top(b_, r, largest(row.top) == limits<T>::lowest);
      if (!b_.output) continue;
      const output_panel<T> out = output(r);
      gather(out);
      const T inverse = static_cast<T>(output_factor(b_, r));
      for (int64_t c = 0; c < b_.value_dim; ++c) ws_.row[c] = out.recent[c] * inverse;
      multiply_by_power(ws_.row, b_.value_dim, output_power(b_, r));
      write_row(b_.output, b_.output_layout, r, b_.value_dim, ws_.row);
    }
  }

  const attend_block& b_;
  arena arena_;
  decode_workspace<T> ws_;
  tile_walk walk_;
  decode_scores<T> scores_;
  decode_row<T> row_[decode_rows];
  stored_rows waiting_ = {nullptr, 0, native<T>};  ///< values of the last tile, not yet added
  int64_t tiles_ = 0;
};

/// Whether to use decode: few queries, with the channels in the lanes, which rounds products
/// differently.
inline bool is_decode(const attend_block& block) {
#if defined(ATTNSCALE_SOFTMAX_ALONE)
  return false;  // a sixth of the module for WebAssembly
#endif
  return block.rows <= decode_rows && !(block.wanted & attnscale::detail::wanted_panels);
}

}  // namespace
