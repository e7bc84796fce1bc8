// SPDX-License-Identifier: BSD-3-Clause
//
// From a normalizer to its struct, and what the host asks of it before the backward loop.
#pragma once

#include "kernels/gradient/block.hpp"
#include "kernels/gradient/weights-inl.hpp"
#include "kernels/simd/simd.hpp"

namespace {

using attnscale::detail::gradient_rows;

/// f(the struct of a normalizer): of those whose weights follow from single scores.
template <class F>
ATTNSCALE_INLINE void with_gradient(normalizer rule, gradient_terms terms, F&& f) {
  switch (rule) {
    case normalizer::softmax:
      if (terms == gradient_terms::constant) return f(softmax_gradient<gradient_terms::constant>{});
      if (terms == gradient_terms::linear) return f(softmax_gradient<gradient_terms::linear>{});
      return f(softmax_gradient<gradient_terms::all>{});
    case normalizer::sigmoid:
      return f(sigmoid_gradient{});
    case normalizer::relu:
      return f(relu_gradient<1>{});
    case normalizer::squared_relu:
      return f(relu_gradient<2>{});
    case normalizer::softpick:
      return f(softpick_gradient{});
    case normalizer::entmax:
    case normalizer::top_k:
      break;
  }
  __builtin_unreachable();
}

/// What the rows of `forward` need whose weights are functions of single scores, but for a softmax:
/// the sums of its rows are those of the forward pass. given: from row `first` on. A row whose sum
/// is NaN is NaN.
inline void describe_rows(const attend_block& forward, int first, gradient_rows& given) noexcept {
  with_gradient(forward.rule, gradient_terms::constant, [&](auto rule) {
    if constexpr (decltype(rule)::pointwise)
      for (int r = 0; r < forward.rows; ++r) {
        const finished_row row(forward, r);
        const row_constants own = rule.constants(row);
        given.reference[first + r] = own.reference;
        given.remainder[first + r] = 0;
        given.factor[first + r] = (own.divisor == 0 ? 0 : 1 / own.divisor) + row.nan_or_zero();
      }
  });
}

}  // namespace
