// SPDX-License-Identifier: BSD-3-Clause
//
// Sums of products of random vectors, 16 samples side by side: components are stored only within a
// tile, and sums never run across lanes.
#pragma once

#include <stdint.h>

#include "kernels/random/fill-inl.hpp"
#include "kernels/random/philox-inl.hpp"
#include "kernels/random/random.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/stop_signal.hpp"

namespace {

using attnscale::detail::group_blocks;
using attnscale::detail::group_words;
using attnscale::detail::purpose;
using attnscale::detail::random_source;
using attnscale::detail::sample_block;

/// Components per tile: tile_groups groups for 16 samples.
constexpr int dot_components = tile_groups * group_words / group_blocks;

/// lanes += sum over components of x * y: float sums of every fourth component, in this order.
inline void add_products(const float* x, const float* y, int components, double* lanes) {
  for (int lane = 0; lane < group_blocks; lane += width<float>) {
    vec<float> part[4];
    for (auto& each : part) each = broadcast(0.0f);
    int c = 0;
    for (; c + 4 <= components; c += 4)
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const int at = (c + k) * group_blocks + lane;
        part[k] = part[k] + load(x + at) * load(y + at);
      }
    for (; c < components; ++c) {
      const int at = c * group_blocks + lane;
      part[0] = part[0] + load(x + at) * load(y + at);
    }
    add_to_double(lanes + lane, (part[0] + part[1]) + (part[2] + part[3]));
  }
}

inline void dots(const sample_block& b) noexcept {
  const philox_keys keys(b.from.key);
  const random_source from_x{b.from, purpose::main}, from_y{b.from, purpose::values};
  const int64_t groups = (b.dim + 3) / 4;
  float x[dot_components * group_blocks], y[dot_components * group_blocks];
  for (int64_t s = 0; s < b.samples && !b.stop->requested(); ++s) {
    double* const lanes = b.out + s * group_blocks;
    for (int i = 0; i < group_blocks; ++i) lanes[i] = 0;
    uint64_t group = (b.first_samples + static_cast<uint64_t>(s)) * static_cast<uint64_t>(groups);
    for (int64_t c = 0; c < b.dim; c += dot_components, group += tile_groups) {
      const int64_t left = b.dim - c;
      const int components = left < dot_components ? static_cast<int>(left) : dot_components;
      fill_groups(from_x, keys, b.x, group, (components + 3) / 4, x);
      fill_groups(from_y, keys, b.y, group, (components + 3) / 4, y);
      add_products(x, y, components, lanes);
    }
  }
}

}  // namespace
