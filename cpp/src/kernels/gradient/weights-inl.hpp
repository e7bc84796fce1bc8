// SPDX-License-Identifier: BSD-3-Clause
//
// From raw products and grad_output . value to weights and the gradients of the scores, for one
// panel of one tile.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/gradient/block.hpp"
#include "kernels/simd/exp-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/softmax/online-inl.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/score-inl.hpp"

namespace {

using attnscale::detail::gradient_terms;

/// Numbers of a block's rows, a lane each: see gradient_rows.
template <class T>
struct gradient_lanes {
  T* scale;  ///< times log2(e)
  T *reference, *remainder, *constant, *linear, *square, *weight;

  gradient_lanes at(int lane) const {
    return {scale + lane,  reference + lane, remainder + lane, constant + lane,
            linear + lane, square + lane,    weight + lane};
  }
};

/// The same of one vector, and what it makes of a score.
template <class T, gradient_terms Terms>
struct softmax_gradient {
  vec<T> reference, remainder, constant, linear, square, weight;

  ATTNSCALE_INLINE explicit softmax_gradient(const gradient_lanes<T>& row)
      : reference(load(row.reference)),
        remainder(load(row.remainder)),
        constant(load(row.constant)),
        linear(load(row.linear)),
        square(load(row.square)),
        weight(load(row.weight)) {}

  /// ln of the weight in base 2, from score - reference.
  ATTNSCALE_INLINE vec<T> exponent(vec<T> above) const { return clamp_exponent(above - remainder); }

  /// The weight of u, and the gradient of its score from that of the weight.
  ATTNSCALE_INLINE vec<T> operator()(vec<T> u, vec<T>& gradient) const {
    const vec<T> p = exp2(u);
    vec<T> x = gradient + constant;
    if constexpr (Terms == gradient_terms::linear) x = fma(linear, u, x);
    if constexpr (Terms == gradient_terms::all) {
      x = fma(fma(square, u, linear), u, x);
      x = fma(weight, p, x);
    }
    gradient = p * x;
    return p;
  }
};

/// Of a tile whose keys all rows see: products <- weights, gradients <- those of the scores.
template <class T, int N, gradient_terms Terms>
inline void differentiate(const gradient_lanes<T>& row, int keys, T* products, T* gradients) {
  constexpr int w = width<T>;
  for (int n = 0; n < N; ++n) {
    const softmax_gradient<T, Terms> rule(row.at(n * w));
    vec<T> scale = load(row.scale + n * w);
    if (any_large(rule.reference))
      scale =
          round_large(scale, rule.reference, 0, keys, N * w, products + n * w, products + n * w);
#pragma GCC unroll 4
    for (int j = 0; j < keys; ++j) {
      const int at = (j * N + n) * w;
      vec<T> gradient = load(gradients + at);
      const vec<T> u = rule.exponent(fma(load(products + at), scale, -rule.reference));
      store(products + at, rule(u, gradient));
      store(gradients + at, gradient);
    }
  }
}

/// Of a biased tile; hidden keys get 0. slopes: derivatives of the scores by scaled products, null
/// if they are 1.
template <class T, int N, gradient_terms Terms>
inline void differentiate_biased(const gradient_lanes<T>& row, const vector_keys<N>& seen,
                                 const score_form& form, const T* bias, T* products, T* gradients,
                                 T* slopes) {
  constexpr int w = width<T>;
  const vec<T> masked = broadcast(masked_score<T>), zero = broadcast(T(0));
  for (int n = 0; n < N; ++n) {
    const softmax_gradient<T, Terms> rule(row.at(n * w));
    const score_rule<T> score(load(row.scale + n * w), form);
    for (int j = seen.begin[n]; j < seen.end[n]; ++j) {
      const int at = (j * N + n) * w;
      const vec<T> raw = load(products + at), b = load(bias + at);
      const vec_mask<T> hidden = b == masked;
      if (slopes) store(slopes + at, score.slope(raw, b));
      vec<T> gradient = load(gradients + at);
      const vec<T> p = rule(rule.exponent(score(raw, b) - rule.reference), gradient);
      store(products + at, xsimd::select(hidden, zero, p));
      store(gradients + at, xsimd::select(hidden, zero, gradient));
    }
  }
}

/// x <- x * factor over the keys that each vector sees.
template <class T, int N>
inline void multiply_seen(const vector_keys<N>& seen, const T* factor, T* x) {
  constexpr int w = width<T>;
  for (int n = 0; n < N; ++n)
    for (int j = seen.begin[n]; j < seen.end[n]; ++j) {
      const int at = (j * N + n) * w;
      store(x + at, load(x + at) * load(factor + at));
    }
}

}  // namespace
