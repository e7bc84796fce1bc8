// SPDX-License-Identifier: BSD-3-Clause
//
// Online softmax of one panel, one tile at a time, in base 2. The reference of exponents may lag
// behind the running maximum by up to 8 (a factor 256, harmless in float): most tiles then need no
// rescaling of output and sums. All sums are over weights 2^(t - reference).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/exp-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/score-inl.hpp"

namespace {

using attnscale::score_form;
using attnscale::detail::log2e;
using attnscale::detail::max_block_rows;
using attnscale::detail::row_sums;
using attnscale::detail::weight_sums;

template <class T>
constexpr T reference_lag = T(8);

/// Rows of one panel: pointers to its lanes in the block's arrays.
template <class T>
struct panel_state {
  T* scale;  ///< times the unit of scores
  T* reference;
  T* top;
};

/// scores <- finished scores of raw products; high <- their maximum. raw and scores may be the same
/// array.
template <class T>
inline void finish_scores(const panel_state<T>& state, const T* bias, const vector_keys& seen,
                          const score_form& form, const T* raw, T* scores, vec<T>* high,
                          T unit = T(log2e)) {
  constexpr int w = width<T>;
  for (int n = 0; n < seen.vectors; ++n) {
    const score_rule<T> rule(load(state.scale + n * w), form, unit);
    vec<T> best = broadcast(masked_score<T>);
    for (int j = seen.begin[n]; j < seen.end[n]; ++j) {
      const int at = (j * seen.vectors + n) * w;
      const vec<T> x = rule(load(raw + at), load(bias + at));
      best = max_or(x, best);
      store(scores + at, x);
    }
    high[n] = best;
  }
}

/// Index, per lane, of the first of the keys [begin, end) whose score equals `wanted`; `end` if
/// none does. Scores are `step` apart. Backwards, so that the first one is written last, in four
/// independent chains.
template <class T>
inline vec<T> first_equal(const T* scores, ptrdiff_t step, int begin, int end, vec<T> wanted) {
  constexpr int parts = 4;
  vec<T> where[parts], at[parts];
  for (int i = 0; i < parts; ++i) {
    where[i] = broadcast(static_cast<T>(end));
    at[i] = broadcast(static_cast<T>(end - 1 - i));
  }
  int j = end - 1;
  for (; j - parts >= begin - 1; j -= parts)
#pragma GCC unroll 4
    for (int i = 0; i < parts; ++i) {
      where[i] = xsimd::select(load(scores + (j - i) * step) == wanted, at[i], where[i]);
      at[i] = at[i] - broadcast(T(parts));
    }
  for (; j >= begin; --j)
    where[0] =
        xsimd::select(load(scores + j * step) == wanted, broadcast(static_cast<T>(j)), where[0]);
  return min_or(min_or(where[0], where[1]), min_or(where[2], where[3]));
}

/// First key of the tile with the largest score, for lanes where it exceeds all earlier tiles.
/// `most` is the largest entry of `scores` per lane, `high` the same in base 2; a zero scale makes
/// all keys equal, and the first one wins.
template <class T>
inline void track_argmax(const panel_state<T>& state, const T* scores, int64_t key,
                         const vector_keys& seen, const vec<T>* most, const vec<T>* high,
                         bool masked, int64_t* argmax) {
  constexpr int w = width<T>;
  const int step = seen.vectors * w;
  for (int n = 0; n < seen.vectors; ++n) {
    const vec_mask<T> better = high[n] > load(state.top + n * w);
    if (!any<T>(better)) continue;
    const vec<T> none = broadcast(static_cast<T>(seen.end[n]));
    vec<T> where = first_equal(scores + n * w, step, seen.begin[n], seen.end[n], most[n]);
    if (!masked)
      where = xsimd::select(load(state.scale + n * w) == broadcast(T(0)), broadcast(T(0)), where);
    T index[w];
    store(index, xsimd::select(better, where, none));
    for (int r = 0; r < w; ++r)
      if (index[r] < static_cast<T>(seen.end[n]))
        argmax[n * w + r] = key + static_cast<int64_t>(index[r]);
  }
}

/// Weights 2^(s - reference), with a reference within reference_lag of the largest score.
struct relative_weights {
  static constexpr bool follows_top = true;
  static constexpr double moment_unit = 1;

  template <class T>
  static ATTNSCALE_INLINE vec_mask<T> is_behind(vec<T> reference, vec<T> top) {
    return top > reference + broadcast(reference_lag<T>);
  }
  template <class X>
  static ATTNSCALE_INLINE X reference_at(X top) {
    return top;
  }
};

/// Raises top to the tile's maximum, and references that have fallen too far behind; returns
/// whether any did. `factor` rescales the older sums: exactly 1 in the other lanes, so that no
/// row's result depends on its neighbours.
template <class W, class T>
inline bool raise_reference(const panel_state<T>& state, int vectors, const vec<T>* high,
                            vec<T>* factor) {
  constexpr int w = width<T>;
  bool behind = false;
  for (int n = 0; n < vectors; ++n) {
    const vec<T> top = max_or(high[n], load(state.top + n * w));
    store(state.top + n * w, top);
    behind = behind || any<T>(W::is_behind(load(state.reference + n * w), top));
  }
  if (!behind) return false;
  for (int n = 0; n < vectors; ++n) {
    const vec<T> top = load(state.top + n * w), old = load(state.reference + n * w);
    const vec<T> raised = xsimd::select(W::is_behind(old, top), W::reference_at(top), old);
    factor[n] = exp2(clamp_exponent(old - raised));
    store(state.reference + n * w, raised);
  }
  return true;
}

/// Change of reference for the sums of consecutive lanes: they shrink by `factor`, and the
/// reference has moved by `shift` (0 if nothing was summed yet).
struct reference_move {
  double factor[max_block_rows], shift[max_block_rows];
};

template <class T>
inline void set_move(const T* before, const T* after, const T* factor, int lanes,
                     reference_move& move) {
  for (int r = 0; r < lanes; ++r) {
    const double shift = static_cast<double>(after[r]) - static_cast<double>(before[r]);
    move.factor[r] = static_cast<double>(factor[r]);
    move.shift[r] = factor[r] > T(0) ? shift : 0.0;
  }
}

/// Calls f for every sum of weight_sums, taken from each of `sums`.
template <class F, class... Sums>
ATTNSCALE_INLINE void for_each_sum(F&& f, Sums&... sums) {
  f(sums.weight...);
  f(sums.first...);
  f(sums.second...);
  f(sums.squares...);
  f(sums.support...);
}

/// Rescales a row's sums when its reference moves by s and older weights shrink by f: first' = f
/// (first - s weight), second' = f (second - 2 s first + s^2 weight).
template <int N>
ATTNSCALE_INLINE void move_sums(weight_sums<N>& sums, int at, double f, double s) {
  const double weight = sums.weight[at], first = sums.first[at];
  sums.second[at] = f * (sums.second[at] - s * (2 * first - s * weight));
  sums.first[at] = f * (first - s * weight);
  sums.weight[at] = f * weight;
  sums.squares[at] *= f * f;
}

/// moment_unit: unit of a shift in `first`.
template <class W>
inline void rescale_sums(row_sums& sums, int lane, int lanes, const reference_move& move) {
  for (int r = 0; r < lanes; ++r)
    move_sums(sums, lane + r, move.factor[r], move.shift[r] * W::moment_unit);
}

/// Reference size beyond which its rounding costs the weights several digits. If one key has all of
/// a row's weight, that weight would differ from 1, its output from the value by as much as
/// rounding, and its gradients from 0 by that times the scale.
template <class T>
constexpr T largest_fused = T(0x1p7);

template <class T>
ATTNSCALE_INLINE bool any_large(vec<T> reference) {
  return any<T>(xsimd::abs(reference) > broadcast(largest_fused<T>));
}

/// Scales that round large scores like the reference. fma(raw, scale, -reference) rounds once: for
/// a large score it includes the rounding error of the reference, so that every weight of the row
/// may vanish or overflow. Lanes with a large reference get rounded scores, the others keep theirs.
/// Returns the scales for the result; scores may be raw. Rare, and outside the loops that do not
/// need it.
template <class T>
[[gnu::noinline]] vec<T> round_large(vec<T> scale, vec<T> reference, int begin, int end,
                                     ptrdiff_t step, const T* raw, T* scores) {
  const vec_mask<T> large = xsimd::abs(reference) > broadcast(largest_fused<T>);
  const vec<T> one = broadcast(T(1)), factor = xsimd::select(large, scale, one);
  for (int j = begin; j < end; ++j) store(scores + j * step, load(raw + j * step) * factor);
  return xsimd::select(large, one, scale);
}

/// Sums of some keys in registers, one per lane.
template <class T>
struct lane_sums {
  vec<T> weight = broadcast(T(0)), first = broadcast(T(0));

  ATTNSCALE_INLINE lane_sums operator+(const lane_sums& more) const {
    return {weight + more.weight, first + more.first};
  }
};

/// Sums that only some statistics need.
template <class T>
struct lane_moments {
  vec<T> second = broadcast(T(0)), squares = broadcast(T(0));

  ATTNSCALE_INLINE lane_moments operator+(const lane_moments& more) const {
    return {second + more.second, squares + more.squares};
  }
};

/// Adds to the sums from `lane` on.
template <bool Moments, class T, int N>
ATTNSCALE_INLINE void add_lanes_to(weight_sums<N>& total, int lane, const lane_sums<T>& sums,
                                   const lane_moments<T>& moments) {
  add_to_double(total.weight + lane, sums.weight);
  add_to_double(total.first + lane, sums.first);
  if constexpr (Moments) {
    add_to_double(total.second + lane, moments.second);
    add_to_double(total.squares + lane, moments.squares);
  }
}

/// The weight of one vector of scores, added to the sums.
template <class T, bool Masked, bool Moments>
ATTNSCALE_INLINE vec<T> absorb(vec<T> s, vec<T> scale, vec<T> reference, lane_sums<T>& sums,
                               lane_moments<T>& moments) {
  vec<T> t = Masked ? s - reference : fma(s, scale, -reference);
  if constexpr (Masked)
    t = xsimd::select(s == broadcast(masked_score<T>), broadcast(exp2_terms<T>::lowest), t);
  t = clamp_exponent(t);
  const vec<T> p = exp2(t);
  sums.weight = sums.weight + p;
  sums.first = fma(p, t, sums.first);
  if constexpr (Moments) {
    moments.second = fma(p * t, t, moments.second);
    moments.squares = fma(p, p, moments.squares);
  }
  return p;
}

/// Storage of weights: each in place of its score. `weight` holds those of the keys j, j + 1, ...
/// of one vector, whose rows are `step` apart.
struct weights_in_place {
  template <class T, int N>
  static ATTNSCALE_INLINE void store_weights(T* scores, ptrdiff_t step, int j,
                                             const vec<T> (&weight)[N]) {
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) store(scores + (j + i) * step, weight[i]);
  }
};

/// No storage of weights, without an output.
struct no_weights {
  template <class T, int N>
  static ATTNSCALE_INLINE void store_weights(T*, ptrdiff_t, int, const vec<T> (&)[N]) {}
};

/// scores <- weights stored by Keep; adds the tile to the sums. Masked: scores come from
/// finish_scores, else they are raw dot products. Four partial sums per lane: shorter chains,
/// smaller errors.
template <class T, bool Masked, bool Moments, class Keep = weights_in_place>
inline void absorb_tile(const panel_state<T>& state, const vector_keys& seen, T* scores,
                        row_sums& total, int first_lane) {
  constexpr int w = width<T>;
  constexpr int parts = 4, half = 2;  // half: four sums in four parts do not fit in registers
  const ptrdiff_t step = seen.vectors * w;
  for (int n = 0; n < seen.vectors; ++n) {
    vec<T> scale = load(state.scale + n * w);
    const vec<T> reference = load(state.reference + n * w);
    T* const own = scores + n * w;
    if (!Masked && any_large(reference))
      scale = round_large(scale, reference, seen.begin[n], seen.end[n], step, own, own);
    lane_sums<T> sums[parts];
    lane_moments<T> moments[half];
    const int keys = seen.end[n];
    int j = seen.begin[n];
    for (; j + parts <= keys; j += parts) {
      vec<T> weight[parts];
#pragma GCC unroll 4
      for (int i = 0; i < parts; ++i)
        weight[i] = absorb<T, Masked, Moments>(load(own + (j + i) * step), scale, reference,
                                               sums[i], moments[i % half]);
      Keep::store_weights(own, step, j, weight);
    }
    for (; j + 2 <= keys; j += 2) {
      vec<T> weight[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i)
        weight[i] = absorb<T, Masked, Moments>(load(own + (j + i) * step), scale, reference,
                                               sums[0], moments[0]);
      Keep::store_weights(own, step, j, weight);
    }
    if (j < keys) {
      const vec<T> weight[1] = {
          absorb<T, Masked, Moments>(load(own + j * step), scale, reference, sums[0], moments[0])};
      Keep::store_weights(own, step, j, weight);
    }
    add_lanes_to<Moments>(total, first_lane + n * w, (sums[0] + sums[1]) + (sums[2] + sums[3]),
                          moments[0] + moments[1]);
  }
}

}  // namespace
