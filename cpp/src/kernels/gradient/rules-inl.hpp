// SPDX-License-Identifier: BSD-3-Clause
//
// From a normalizer to its struct, and what the host asks of it before the backward loop.
#pragma once

#include "kernels/gradient/block.hpp"
#include "kernels/gradient/weights-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/softmax/normalizers-inl.hpp"

namespace {

using attnscale::detail::gradient_rows;

/// f(the struct of the backward pass) of a normalizer that with_weights() has.
template <class F>
ATTNSCALE_INLINE void with_gradient(normalizer rule, gradient_terms terms, F&& f) {
  with_weights(rule, [&](auto weights) {
    if constexpr (decltype(weights)::pointwise)
      f(weights);
    else if (terms == gradient_terms::constant)
      f(softmax_gradient<gradient_terms::constant>{});
    else if (terms == gradient_terms::linear)
      f(softmax_gradient<gradient_terms::linear>{});
    else
      f(softmax_gradient<gradient_terms::all>{});
  });
}

/// What the rows of `forward` need whose weights are functions of single scores, but for a softmax:
/// the sums of its rows are those of the forward pass. given: from row `first` on. A row whose sum
/// is NaN is NaN.
inline void describe_rows(const attend_block& forward, int first, gradient_rows& given) noexcept {
  with_weights(forward.rule, [&](auto weights) {
    if constexpr (decltype(weights)::pointwise)
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
