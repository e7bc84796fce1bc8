// SPDX-License-Identifier: BSD-3-Clause
//
// From raw products and grad_output . value to weights and gradients of the scores, for one panel
// of one tile: the loops for the `backward` of each struct of softmax/normalizers-inl.hpp, with the
// terms that with_gradient() picks.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/gradient/block.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/softmax/contract-inl.hpp"
#include "kernels/softmax/online-inl.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/score-inl.hpp"

namespace {

using attnscale::detail::matrix;

/// Rows of a panel whose weight may lie on one key. The gradient of its score is a small difference
/// of two products, grad_output . value - grad_output . output, which loses its digits; it is
/// replaced by grad_output . (value - output), which is 0 if the output is the value.
template <class T>
struct heavy_keys {
  T most;                         ///< gradients at weights above it are replaced; infinity: none
  const T *grad_output, *output;  ///< panels
  const T* constant;              ///< per row, without grad_output . output
  matrix value;
  int64_t columns, key;  ///< the tile's first key
  ptrdiff_t lanes;
  T* copy;

  /// Replaces some gradients of vector n of the panel at key j of the tile.
  template <class Rule>
  [[gnu::noinline]] vec<T> replace(Rule rule, int n, int64_t j, vec<T> above, vec<T> score,
                                   vec<T> weight, vec<T> gradient) const {
    if constexpr (requires { rule.constant; }) {
      const int first = n * width<T>;
      const T* v = view_rows(value, key + j, 1, columns, copy).data;
      vec<T> own = load(constant + first);
      for (int64_t c = 0; c < columns; ++c)
        own = fma(broadcast(v[c]) - load(output + c * lanes + first),
                  load(grad_output + c * lanes + first), own);
      rule.constant = broadcast(T(0));
      rule(above, score, own);
      return xsimd::select(weight > broadcast(most), own, gradient);
    }
    return gradient;
  }
};

/// For a tile without hidden pairs: products <- weights, gradients <- gradients of the scores.
template <class Backward, class T>
inline void differentiate(const gradient_lanes<T>& row, int vectors, int keys,
                          const heavy_keys<T>& heavy, T* products, T* gradients) {
  constexpr int w = width<T>;
  const ptrdiff_t step = vectors * w;
  const vec<T> most = broadcast(heavy.most);
  for (int n = 0; n < vectors; ++n) {
    const Backward rule(row.at(n * w));
    vec<T> scale = load(row.scale + n * w);
    if (any_large(rule.reference))
      scale = round_large(scale, rule.reference, 0, keys, step, products + n * w, products + n * w);
    ptrdiff_t at = n * w;
#pragma GCC unroll 4
    for (int j = 0; j < keys; ++j, at += step) {
      vec<T> gradient = load(gradients + at);
      const vec<T> x = load(products + at);
      const vec<T> above = fma(x, scale, -rule.reference), p = rule(above, x * scale, gradient);
      if (any<T>(p > most)) gradient = heavy.replace(rule, n, j, above, x * scale, p, gradient);
      store(products + at, p);
      store(gradients + at, gradient);
    }
  }
}

/// For a biased tile; hidden keys get 0. slopes: derivatives of the scores by scaled products, null
/// if they are 1.
template <class Backward, class T>
inline void differentiate_biased(const gradient_lanes<T>& row, const vector_keys& seen,
                                 const score_form& form, const heavy_keys<T>& heavy, const T* bias,
                                 T* products, T* gradients, T* slopes) {
  constexpr int w = width<T>;
  const vec<T> masked = broadcast(masked_score<T>), zero = broadcast(T(0));
  const vec<T> most = broadcast(heavy.most);
  for (int n = 0; n < seen.vectors; ++n) {
    const Backward rule(row.at(n * w));
    const score_rule<T> score(load(row.scale + n * w), form);
    for (int j = seen.begin[n]; j < seen.end[n]; ++j) {
      const int at = (j * seen.vectors + n) * w;
      const vec<T> raw = load(products + at), b = load(bias + at);
      const vec_mask<T> hidden = b == masked;
      if (slopes) store(slopes + at, score.slope(raw, b));
      vec<T> gradient = load(gradients + at);
      const vec<T> s = score(raw, b), above = s - rule.reference, p = rule(above, s, gradient);
      if (any<T>(p > most)) gradient = heavy.replace(rule, n, j, above, s, p, gradient);
      store(products + at, xsimd::select(hidden, zero, p));
      store(gradients + at, xsimd::select(hidden, zero, gradient));
    }
  }
}

/// x <- x * factor over the visible keys of each vector.
template <class T>
inline void multiply_seen(const vector_keys& seen, const T* factor, T* x) {
  constexpr int w = width<T>;
  for (int n = 0; n < seen.vectors; ++n)
    for (int j = seen.begin[n]; j < seen.end[n]; ++j) {
      const int at = (j * seen.vectors + n) * w;
      store(x + at, load(x + at) * load(factor + at));
    }
}

/// total[lane] += x(key, lane) over the visible keys of each vector.
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
