// SPDX-License-Identifier: BSD-3-Clause
//
// From raw products and grad_output . value to weights and the gradients of the
// scores, for one panel of one tile. Each normalizer is one struct, picked by
// with_gradient(): from a score in base 2, and u, the score less the reference
// of the row, it makes the weight, and of the weight's gradient that of the
// score. constants() are those of a row whose forward pass has ended; a softmax
// has them from its lse.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/gradient/block.hpp"
#include "kernels/simd/exp-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/softmax/online-inl.hpp"
#include "kernels/softmax/weights-inl.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/score-inl.hpp"
#include "numbers.hpp"

namespace {

using attnscale::normalizer;
using attnscale::detail::gradient_terms;
using attnscale::detail::ln2;

/// Numbers of a block's rows, a lane each: see gradient_rows.
template <class T>
struct gradient_lanes {
  T* scale;  ///< times log2(e)
  T *reference, *remainder, *constant, *linear, *square, *weight, *factor;

  gradient_lanes at(int lane) const {
    return {scale + lane,  reference + lane, remainder + lane, constant + lane,
            linear + lane, square + lane,    weight + lane,    factor + lane};
  }
};

/// gradient_rows::reference, and one over gradient_rows::factor.
struct row_constants {
  double reference, divisor;
};

/// Weights 2^u, and all terms of gradient_rows.
template <gradient_terms Terms>
struct softmax_gradient {
  static constexpr bool pointwise = false;

  template <class T>
  struct of_rows {
    vec<T> reference, remainder, constant, linear, square, weight;

    ATTNSCALE_INLINE explicit of_rows(const gradient_lanes<T>& row)
        : reference(load(row.reference)),
          remainder(load(row.remainder)),
          constant(load(row.constant)),
          linear(load(row.linear)),
          square(load(row.square)),
          weight(load(row.weight)) {}

    /// In two steps: what a large reference lost is in the remainder.
    ATTNSCALE_INLINE vec<T> operator()(vec<T> above, vec<T>, vec<T>& gradient) const {
      const vec<T> u = clamp_exponent(above - remainder), p = exp2(u);
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
};

/// Weights factor / (1 + 2^-u).
struct sigmoid_gradient {
  static constexpr bool pointwise = true;
  static row_constants constants(const finished_row& row) {
    return {row.own.bias ? -*row.own.bias * log2e : 0, 1};
  }

  template <class T>
  struct of_rows {
    vec<T> reference, factor;

    ATTNSCALE_INLINE explicit of_rows(const gradient_lanes<T>& row)
        : reference(load(row.reference)), factor(load(row.factor)) {}

    /// With e = 2^-|u|: 1 / (1 + e) or e / (1 + e), and their product.
    ATTNSCALE_INLINE vec<T> operator()(vec<T> u, vec<T>, vec<T>& gradient) const {
      const vec<T> one = broadcast(T(1)), e = exp2(clamp_exponent(-xsimd::abs(u)));
      const vec<T> large = factor / (one + e), small = e * large;
      gradient = gradient * small / (one + e);
      return xsimd::select(u < broadcast(T(0)), small, large);
    }
  };
};

/// Weights factor * max(score, 0)^Power.
template <int Power>
struct relu_gradient {
  static constexpr bool pointwise = true;
  static row_constants constants(const finished_row& row) {
    return {0, row.own.factor ? 1 / *row.own.factor : row.sum * __builtin_exp2(row.reference)};
  }

  template <class T>
  struct of_rows {
    vec<T> reference, constant, factor;

    ATTNSCALE_INLINE explicit of_rows(const gradient_lanes<T>& row)
        : reference(load(row.reference)), constant(load(row.constant)), factor(load(row.factor)) {}

    ATTNSCALE_INLINE vec<T> operator()(vec<T>, vec<T> score, vec<T>& gradient) const {
      const vec<T> zero = broadcast(T(0)), s = score * broadcast(T(ln2));
      const vec<T> x = (gradient + constant) * factor;
      // NaN is not below 0: it stays.
      const vec_mask<T> below = score <= zero;
      gradient = xsimd::select(below, factor * zero, Power == 2 ? (s + s) * x : x);
      return xsimd::select(below, factor * zero, Power == 2 ? s * s * factor : s * factor);
    }
  };
};

/// Weights factor * max(2^u - 2^-reference, 0), u a score less the reference.
struct softpick_gradient {
  static constexpr bool pointwise = true;
  static row_constants constants(const finished_row& row) {
    return {row.reference, row.sum + row.eps / __builtin_exp2(row.reference)};
  }

  template <class T>
  struct of_rows {
    vec<T> reference, constant, factor, unit;

    ATTNSCALE_INLINE explicit of_rows(const gradient_lanes<T>& row)
        : reference(load(row.reference)),
          constant(load(row.constant)),
          factor(load(row.factor)),
          unit(exp2(clamp_exponent(-reference))) {}

    ATTNSCALE_INLINE vec<T> operator()(vec<T> u, vec<T> score, vec<T>& gradient) const {
      const vec<T> zero = broadcast(T(0));
      const exp2_parts<T> e = split_exp2(clamp_exponent(u));
      const vec<T> power = fma(e.q, e.f, broadcast(T(1))) * e.power;
      const vec<T> above = fma(e.power, e.q * e.f, e.power - unit);
      const vec_mask<T> is_above = score > zero;
      const vec<T> x = xsimd::select(is_above, gradient + constant, -constant);
      gradient = power * factor * x;
      return xsimd::select(is_above, max_or(zero, above), zero) * factor;
    }
  };
};

/// Of a tile whose keys all rows see: products <- weights, gradients <- those
/// of the scores.
template <class Rule, class T>
inline void differentiate(const gradient_lanes<T>& row, int vectors, int keys, T* products,
                          T* gradients) {
  constexpr int w = width<T>;
  const ptrdiff_t step = vectors * w;
  for (int n = 0; n < vectors; ++n) {
    const typename Rule::template of_rows<T> rule(row.at(n * w));
    vec<T> scale = load(row.scale + n * w);
    if (any_large(rule.reference))
      scale = round_large(scale, rule.reference, 0, keys, step, products + n * w, products + n * w);
    ptrdiff_t at = n * w;
#pragma GCC unroll 4
    for (int j = 0; j < keys; ++j, at += step) {
      vec<T> gradient = load(gradients + at);
      const vec<T> x = load(products + at);
      store(products + at, rule(fma(x, scale, -rule.reference), x * scale, gradient));
      store(gradients + at, gradient);
    }
  }
}

/// Of a biased tile; hidden keys get 0. slopes: derivatives of the scores by
/// scaled products, null if they are 1.
template <class Rule, class T>
inline void differentiate_biased(const gradient_lanes<T>& row, const vector_keys& seen,
                                 const score_form& form, const T* bias, T* products, T* gradients,
                                 T* slopes) {
  constexpr int w = width<T>;
  const vec<T> masked = broadcast(masked_score<T>), zero = broadcast(T(0));
  for (int n = 0; n < seen.vectors; ++n) {
    const typename Rule::template of_rows<T> rule(row.at(n * w));
    const score_rule<T> score(load(row.scale + n * w), form);
    for (int j = seen.begin[n]; j < seen.end[n]; ++j) {
      const int at = (j * seen.vectors + n) * w;
      const vec<T> raw = load(products + at), b = load(bias + at);
      const vec_mask<T> hidden = b == masked;
      if (slopes) store(slopes + at, score.slope(raw, b));
      vec<T> gradient = load(gradients + at);
      const vec<T> s = score(raw, b), p = rule(s - rule.reference, s, gradient);
      store(products + at, xsimd::select(hidden, zero, p));
      store(gradients + at, xsimd::select(hidden, zero, gradient));
    }
  }
}

/// x <- x * factor over the keys that each vector sees.
template <class T>
inline void multiply_seen(const vector_keys& seen, const T* factor, T* x) {
  constexpr int w = width<T>;
  for (int n = 0; n < seen.vectors; ++n)
    for (int j = seen.begin[n]; j < seen.end[n]; ++j) {
      const int at = (j * seen.vectors + n) * w;
      store(x + at, load(x + at) * load(factor + at));
    }
}

/// total[lane] += x(key, lane) over the keys that each vector sees.
template <class T>
inline void add_over_keys(const vector_keys& seen, const T* x, double* total) {
  constexpr int w = width<T>;
  for (int n = 0; n < seen.vectors; ++n) {
    vec<T> sum = broadcast(T(0));
    for (int j = seen.begin[n]; j < seen.end[n]; ++j)
      sum = sum + load(x + (j * seen.vectors + n) * w);
    add_to_double(total + n * w, sum);
  }
}

}  // namespace
