// SPDX-License-Identifier: BSD-3-Clause
//
// From a normalizer to its struct, and its per-row parameters for the backward loop.
#pragma once

#include "kernels/gradient/block.hpp"
#include "kernels/gradient/weights-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/softmax/normalizers-inl.hpp"

namespace {

using attnscale::detail::gradient_rows;

/// Calls f.operator()<backward of a normalizer that with_weights() has>(). Only exponentials have
/// gradients of statistics, which are the terms beyond the constant.
template <class T, class F>
ATTNSCALE_INLINE void with_gradient(normalizer rule, gradient_terms terms, F&& f) {
  using enum gradient_terms;
  with_weights(rule, [&](auto weights) {
    using W = decltype(weights);
    if constexpr (W::is_exponential) {
      if (terms == linear) return f.template operator()<typename W::template backward<T, linear>>();
      if (terms == all) return f.template operator()<typename W::template backward<T, all>>();
    }
    return f.template operator()<typename W::template backward<T, constant>>();
  });
}

/// Parameters of the rows of `forward` with pointwise weights; its sums are those of the forward
/// pass. given: from row `first` on. A row whose sum is NaN is NaN.
inline void set_row_parameters(const attend_block& forward, int first,
                               gradient_rows& given) noexcept {
  with_weights(forward.rule, [&](auto weights) {
    if constexpr (!decltype(weights)::is_exponential)
      for (int r = 0; r < forward.rows; ++r) {
        const finished_row row(forward, r);
        const row_constants own = weights.backward_constants(row);
        given.reference[first + r] = own.reference;
        given.remainder[first + r] = 0;
        given.factor[first + r] = (own.divisor == 0 ? 0 : 1 / own.divisor) + row.nan_or_zero();
      }
  });
}

}  // namespace
