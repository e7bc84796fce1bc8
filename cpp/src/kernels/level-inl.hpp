// SPDX-License-Identifier: BSD-3-Clause
//
// Everything an ISA unit compiles.
#pragma once

#include <stddef.h>

#include "kernels/gradient/gradient-inl.hpp"
#include "kernels/level.hpp"
#include "kernels/linear/key_gradients-inl.hpp"
#include "kernels/linear/linear-inl.hpp"
#include "kernels/linear/query_gradients-inl.hpp"
#include "kernels/machine/peak-inl.hpp"
#include "kernels/random/distances-inl.hpp"
#include "kernels/random/dot_products-inl.hpp"
#include "kernels/random/fill-inl.hpp"
#include "kernels/random/projection-inl.hpp"
#include "kernels/random/simulated_rows-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/softmax/attend-inl.hpp"
#include "kernels/softmax/curve-inl.hpp"
#include "kernels/softmax/decode-inl.hpp"
#include "kernels/softmax/decode_scores-inl.hpp"
#include "kernels/softmax/solve-inl.hpp"
#include "kernels/sparse/lists-inl.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/product-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::normalizer;
using attnscale::detail::attend_block;

inline bool has_threshold(const attend_block& block) {
  return block.rule == normalizer::entmax || block.rule == normalizer::top_k;
}

/// Few queries: the channels go into the lanes, which rounds products differently.
inline bool is_decode(const attend_block& block) {
  return block.rows <= decode_rows && !(block.wanted & attnscale::detail::wanted_panels);
}

template <class T>
size_t attend_scratch(const attend_block& block) {
  arena a{nullptr};
  if (has_threshold(block)) {
    list_workspace<T> unused(block, a);
    return a.used;
  }
  if (is_decode(block)) {
    decode_workspace<T> unused(block, a);
    return a.used;
  }
  attend_workspace<T> unused(block, a);
  return a.used;
}

template <class T>
void attend(const attend_block& block) noexcept {
  if (has_threshold(block)) return list_rows<T>(block).run();
  if (is_decode(block)) return decode_run<T>(block).run();
  attend_run<T>(block).run();
}

template <class T>
constexpr attnscale::detail::typed_kernels make_typed() {
  return {block_rows<T>,
          attend_scratch<T>,
          attend<T>,
          curve_scratch<T>,
          curve<T>,
          width<T>,
          panel_vectors * width<T>,
          solve_scratch<T>,
          solve_gather<T>,
          solve_evaluate<T>,
          fma_peak<T>,
          fill<T>,
          linear_scratch<T>,
          linear<T>,
          gradient_block_rows<T>,
          gradient_scratch<T>,
          gradient<T>,
          linear_gradient_scratch<T>,
          linear_query_gradients<T>,
          linear_key_gradients<T>};
}

constexpr attnscale::detail::level_kernels make_level(const char* name) {
  return {name,           make_typed<float>(), make_typed<double>(), read_memory, simulate_row,
          dots,           panel_lanes,         project_scratch,      project,     distance_scratch,
          distance_ratios};
}

}  // namespace
