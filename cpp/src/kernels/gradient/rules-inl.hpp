// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "kernels/gradient/block.hpp"
#include "kernels/gradient/weights-inl.hpp"
#include "kernels/simd/simd.hpp"

namespace {

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

}  // namespace
