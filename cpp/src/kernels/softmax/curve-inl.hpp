// SPDX-License-Identifier: BSD-3-Clause
//
// Row sums at many scales from one pass over q . k: the raw products of a tile are computed once,
// and each scale loops over them.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/numbers.hpp"
#include "kernels/simd/exp-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/softmax/online-inl.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::detail::curve_block;
using attnscale::detail::curve_sums;
using attnscale::detail::log2e;

template <class T>
struct curve_workspace {
  tile_workspace<T> tile;
  T* raw;
  T *scale, *reference, *top;  ///< [scale][lane]

  curve_workspace(const curve_block& b, arena& a) : tile(b, 0, a) {
    const int64_t lanes = b.n_scales * block_rows<T>;
    raw = a.take<T>(max_tile_keys * panel_vectors * width<T>);
    scale = a.take<T>(lanes);
    reference = a.take<T>(lanes);
    top = a.take<T>(lanes);
  }
};

/// t - reference of one vector of keys, `lowest` where masked. Rounded: see round_large.
template <class T, bool Masked, bool Rounded>
ATTNSCALE_INLINE vec<T> curve_exponent(const T* score, vec<T> raw, vec<T> scale, vec<T> reference) {
  if constexpr (!Masked) return clamp_exponent(fma(Rounded ? load(score) : raw, scale, -reference));
  const vec<T> s = load(score), lowest = broadcast(exp2_terms<T>::lowest);
  return clamp_exponent(xsimd::select(s == broadcast(masked_score<T>), lowest, s - reference));
}

/// Adds one vector of weights to the sums of a scale. Masked keys have weight 0, but any raw
/// product.
template <class T, bool Masked, bool Rounded>
ATTNSCALE_INLINE void absorb_curve(const T* score, const T* raw, vec<T> scale, vec<T> reference,
                                   vec<T> center, vec<T> (&sums)[4]) {
  const vec<T> r = load(raw);
  vec<T> x = r - center;
  const vec<T> t = curve_exponent<T, Masked, Rounded>(score, r, scale, reference);
  if constexpr (Masked)
    x = xsimd::select(load(score) == broadcast(masked_score<T>), broadcast(T(0)), x);
  const vec<T> p = exp2(t), px = p * x;
  sums[0] = sums[0] + p;
  sums[1] = fma(p, t, sums[1]);
  sums[2] = sums[2] + px;
  sums[3] = fma(px, x, sums[3]);
}

/// Keys [begin, end) of a tile, `step` apart; even and odd keys are independent chains.
template <class T, bool Masked, bool Rounded>
ATTNSCALE_INLINE void absorb_curve_keys(int begin, int end, ptrdiff_t step, const T* scores,
                                        const T* raw, vec<T> scale, vec<T> reference, vec<T> center,
                                        vec<T> (&part)[2][4]) {
  const auto absorb_key = [&](int j, vec<T>(&sums)[4]) ATTNSCALE_INLINE_LAMBDA {
    absorb_curve<T, Masked, Rounded>(scores + j * step, raw + j * step, scale, reference, center,
                                     sums);
  };
  int j = begin;
  if (Masked && j % 2 == 1 && j < end) absorb_key(j++, part[1]);
  for (; j + 2 <= end; j += 2) {
    absorb_key(j, part[0]);
    absorb_key(j + 1, part[1]);
  }
  if (j < end) absorb_key(j, part[0]);
}

/// The general form, outside the common loop.
template <class T>
[[gnu::noinline]] void absorb_rounded(int begin, int end, ptrdiff_t step, const T* scores,
                                      const T* raw, vec<T> scale, vec<T> reference, vec<T> center,
                                      vec<T> (&part)[2][4]) {
  absorb_curve_keys<T, false, true>(begin, end, step, scores, raw, scale, reference, center, part);
}

/// Distance from which the sum of squares of a tile might overflow.
template <class T>
constexpr T widest = sizeof(T) == 4 ? T(0x1p50) : T(0x1p490);

/// Lanes with a product that far from their center. Lanes without visible keys are excluded: their
/// extremes are infinite with swapped signs.
template <class T>
ATTNSCALE_INLINE vec_mask<T> far_lanes(vec<T> most, vec<T> least, vec<T> center) {
  const vec<T> distance = max_or(xsimd::abs(most - center), xsimd::abs(least - center));
  return (distance > broadcast(widest<T>)) & (most >= least);
}

/// Adds one vector of keys to the sums of such lanes: distances, their squares and sums in double,
/// whose range distances between floats cannot leave. A key with zero weight adds nothing, however
/// far it is. Rare: scalar.
template <class T>
[[gnu::noinline]] void absorb_far(vec_mask<T> far, vec<T> exponent, const T* raw, curve_sums& sums,
                                  int lane) {
  constexpr int w = width<T>;
  T weights[w], exponents[w];
  store(exponents, exponent);
  store(weights, xsimd::select(far, exp2(exponent), broadcast(T(0))));
  for (int r = 0; r < w; ++r) {
    if (weights[r] == T(0)) continue;
    const double p = static_cast<double>(weights[r]);
    const double x = static_cast<double>(raw[r]) - sums.center[lane + r];
    sums.weight[lane + r] += p;
    sums.first[lane + r] += p * static_cast<double>(exponents[r]);
    sums.raw_first[lane + r] += p * x;
    sums.raw_second[lane + r] += p * x * x;
  }
}

template <class T, bool Masked>
inline void absorb_curve_tile(const panel_state<T>& state, const tile_products<T>& tile, T* scores,
                              const T* raw, curve_sums& sums, int first_lane) {
  constexpr int w = width<T>;
  const ptrdiff_t step = tile.seen.vectors * w;
  for (int n = 0; n < tile.seen.vectors; ++n) {
    const int lane = first_lane + n * w, begin = tile.seen.begin[n];
    const int end = tile.seen.end[n];
    T centers[w];
    for (int r = 0; r < w; ++r) centers[r] = static_cast<T>(sums.center[lane + r]);
    vec<T> scale = load(state.scale + n * w);
    const vec<T> reference = load(state.reference + n * w), center = load(centers);
    vec<T> part[2][4];
#pragma GCC unroll 2
    for (auto& sums_of : part)
#pragma GCC unroll 4
      for (vec<T>& sum : sums_of) sum = broadcast(T(0));
    T* const own = scores + n * w;
    const T* const products = raw + n * w;
    const bool rounded = !Masked && any_large(reference);
    if (rounded) scale = round_large(scale, reference, begin, end, step, products, own);
    const vec_mask<T> far = far_lanes(tile.most[n], tile.least[n], center);
    const bool some_far = any<T>(far);
    for (int j = begin; some_far && j < end; ++j) {
      const T* const key = products + j * step;
      const vec<T> t =
          rounded ? curve_exponent<T, Masked, true>(own + j * step, load(key), scale, reference)
                  : curve_exponent<T, Masked, false>(own + j * step, load(key), scale, reference);
      absorb_far<T>(far, t, key, sums, lane);
    }
    if (rounded)
      absorb_rounded<T>(begin, end, step, own, products, scale, reference, center, part);
    else
      absorb_curve_keys<T, Masked, false>(begin, end, step, own, products, scale, reference, center,
                                          part);
    if (some_far)  // the other lanes are unchanged
#pragma GCC unroll 2
      for (auto& sums_of : part)
#pragma GCC unroll 4
        for (vec<T>& sum : sums_of) sum = xsimd::select(far, broadcast(T(0)), sum);
    add_to_double(sums.weight + lane, part[0][0] + part[1][0]);
    add_to_double(sums.first + lane, part[0][1] + part[1][1]);
    add_to_double(sums.raw_first + lane, part[0][2] + part[1][2]);
    add_to_double(sums.raw_second + lane, part[0][3] + part[1][3]);
  }
}

/// Rescales the sums of a lane after its reference moved by `shift` and its center to `center`.
inline void rescale_curve(curve_sums& sums, int lane, double factor, double shift, double center) {
  const double weight = sums.weight[lane], first = sums.first[lane];
  if (factor == 0) {  // the squares of lost terms may have overflowed; NaN is kept
    sums.weight[lane] = 0 * weight;
    sums.first[lane] = sums.raw_first[lane] = sums.raw_second[lane] = 0;
    sums.center[lane] = center;
    return;
  }
  const double raw_first = sums.raw_first[lane], move = center - sums.center[lane];
  sums.raw_second[lane] =
      factor * (sums.raw_second[lane] - 2 * move * raw_first + move * move * weight);
  sums.raw_first[lane] = factor * (raw_first - move * weight);
  sums.first[lane] = factor * (first - shift * weight);
  sums.weight[lane] = factor * weight;
  sums.center[lane] = center;
}

template <class T>
class curve_run {
 public:
  explicit curve_run(const curve_block& block)
      : b_(block), arena_{static_cast<char*>(block.scratch)}, ws_(block, arena_), walk_(block) {}

  void run() {
    prepare();
    walk_.for_tiles([&](const key_tile& at) {
      const row_view<T> k = ws_.tile.keys(b_, at);
      for_panels<T>(b_.rows, [&](query_panel panel) { tile(panel, at, k); });
    });
    if (walk_.stopped) return;
    for (int64_t s = 0; s < b_.n_scales; ++s)
      for (int r = 0; r < b_.rows; ++r)
        b_.sums[s].reference[r] = static_cast<double>(ws_.reference[s * block_rows<T> + r]);
  }

 private:
  static constexpr int w = width<T>;

  void prepare() {
    for (int64_t s = 0; s < b_.n_scales; ++s) {
      curve_sums& sums = b_.sums[s];
      for (int r = 0; r < block_rows<T>; ++r) {
        const int64_t at = s * block_rows<T> + r;
        ws_.scale[at] = static_cast<T>(b_.scales[s] * log2e);
        ws_.reference[at] = ws_.top[at] = limits<T>::lowest;
        sums.weight[r] = sums.first[r] = sums.center[r] = 0;
        sums.raw_first[r] = sums.raw_second[r] = 0;
      }
    }
    for_panels<T>(b_.rows, [&](query_panel panel) {
      pack_queries(b_, panel, ws_.tile.rows, ws_.tile.query + panel.lane * b_.head_dim);
    });
  }

  void tile(query_panel panel, const key_tile& at, row_view<T> k) {
    tile_products<T> t;
    const T* const query = ws_.tile.query + panel.lane * b_.head_dim;
    if (!multiply_tile(b_, ws_.tile, at, k, panel, query, ws_.raw, t)) return;
    if (t.biased) find_extremes(ws_.tile.bias, ws_.raw, t);
    for (int64_t s = 0; s < b_.n_scales; ++s) absorb_tile(s, panel.lane, t);
  }

  void absorb_tile(int64_t s, int lane, const tile_products<T>& t) {
    const int64_t at = s * block_rows<T> + lane;
    const panel_state<T> state{ws_.scale + at, ws_.reference + at, ws_.top + at};
    T* const scores = ws_.tile.scores;
    vec<T> high[panel_vectors];
    if (t.biased) {
      finish_scores(state, ws_.tile.bias, t.seen, b_.form, ws_.raw, scores, high);
    } else {
      for (int n = 0; n < t.seen.vectors; ++n) {
        const vec<T> scale = load(state.scale + n * w);
        high[n] = max_or(t.most[n] * scale, t.least[n] * scale);
        propagate_infinite(t.most[n], t.least[n], b_.sums[s], lane + n * w);
      }
    }
    const vec<T>* const edge = b_.scales[s] < 0 ? t.least : t.most;
    update_reference(state, {lane, t.seen.vectors}, edge, high, b_.sums[s]);
    if (t.biased)
      absorb_curve_tile<T, true>(state, t, scores, ws_.raw, b_.sums[s], lane);
    else
      absorb_curve_tile<T, false>(state, t, scores, ws_.raw, b_.sums[s], lane);
  }

  /// Turns rows with an infinite visible raw score into NaN, even if its weight is 0.
  void propagate_infinite(vec<T> most, vec<T> least, curve_sums& sums, int lane) {
    const vec<T> infinity = broadcast(limits<T>::infinity);
    const vec_mask<T> bad = (most == infinity) | (least == -infinity);
    if (!any<T>(bad)) return;
    T lanes[w];
    store(lanes, xsimd::select(bad, broadcast(T(1)), broadcast(T(0))));
    for (int r = 0; r < w; ++r)
      if (lanes[r] != T(0)) sums.weight[lane + r] = __builtin_nan("");
  }

  /// `edge`: a raw product near the concentration of the weights, the new center.
  void update_reference(const panel_state<T>& state, query_panel panel, const vec<T>* edge,
                        const vec<T>* high, curve_sums& sums) {
    constexpr int most = panel_vectors * w;
    const int vectors = panel.vectors;
    T before[most], factors[most], raw[most];
    for (int n = 0; n < vectors; ++n) {
      store(before + n * w, load(state.reference + n * w));
      store(raw + n * w, edge[n]);
    }
    vec<T> factor[panel_vectors];
    if (!raise_reference<relative_weights>(state, vectors, high, factor)) return;
    for (int n = 0; n < vectors; ++n) store(factors + n * w, factor[n]);
    reference_move move;
    set_move(before, state.reference, factors, vectors * w, move);
    for (int r = 0; r < vectors * w; ++r) {
      const bool moves = state.reference[r] != before[r] && raw[r] - raw[r] == T(0);
      const int lane = panel.lane + r;
      rescale_curve(sums, lane, move.factor[r], move.shift[r],
                    moves ? static_cast<double>(raw[r]) : sums.center[lane]);
    }
  }

  const curve_block& b_;
  arena arena_;
  curve_workspace<T> ws_;
  tile_walk walk_;
};

template <class T>
void curve(const curve_block& block) noexcept {
  curve_run<T>(block).run();
}

}  // namespace
