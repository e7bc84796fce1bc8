// SPDX-License-Identifier: BSD-3-Clause
//
// From a raw product to a score, in base 2 or in nats (score_block::unit): score_form with the
// scale of the row, then bias and mask.
#pragma once

#include "attnscale/types.hpp"
#include "kernels/numbers.hpp"
#include "kernels/simd/exp-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/mask-inl.hpp"

namespace {

using attnscale::score_form;
using attnscale::detail::log2e;

/// Whether scores are more than scaled products, which loops without a bias compute on the way.
inline bool changes_scores(const score_form& form) { return form.softcap > 0; }

/// Scores from raw products: scale, soft-cap, bias, mask, in this order.
template <class T>
struct score_rule {
  vec<T> scale, cap;
  bool capped;

  /// row_scale: the row's scale times the unit of scores.
  ATTNSCALE_INLINE score_rule(vec<T> row_scale, const score_form& form, T unit = T(log2e)) {
    const T softcap = static_cast<T>(form.softcap);
    cap = broadcast(softcap > 0 ? softcap * unit : T(1));
    scale = row_scale / cap;
    capped = softcap > 0;
  }

  /// Turns a visible score that is not finite into NaN (x - x), before a soft-cap could hide it.
  ATTNSCALE_INLINE vec<T> operator()(vec<T> raw, vec<T> bias) const {
    const vec<T> masked = broadcast(masked_score<T>);
    vec<T> x = raw * scale;
    x = x + (x - x);
    if (capped) x = tanh(x) * cap;
    return xsimd::select(bias == masked, masked, x + bias);
  }

  /// Derivative of the score by the scaled product; 0 for a hidden key.
  ATTNSCALE_INLINE vec<T> slope(vec<T> raw, vec<T> bias) const {
    const vec<T> at = capped ? tanh_slope(raw * scale) : broadcast(T(1));
    return xsimd::select(bias == broadcast(masked_score<T>), broadcast(T(0)), at);
  }
};

}  // namespace
