// SPDX-License-Identifier: BSD-3-Clause
//
// Random projections: products of rows with panels of a random matrix, which are drawn one block of
// components at a time.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/types.hpp"
#include "kernels/random/fill-inl.hpp"
#include "kernels/random/philox-inl.hpp"
#include "kernels/random/random.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/stop_signal.hpp"
#include "kernels/tile/product-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::distribution;
using attnscale::projection_kind;
using attnscale::detail::group_blocks;
using attnscale::detail::group_words;
using attnscale::detail::projection_block;
using attnscale::detail::variate_block;

/// Lanes per panel.
constexpr int panel_lanes = panel_vectors * width<float>;

/// Components per block: a panel of them is at most 128 KiB, and a float sum has at most as many
/// terms.
constexpr int block_depth = 512;

/// Calls use(row, acc) for register blocks of M rows: acc[m][n] are sums over `depth` components.
template <class Term, class Use>
inline void for_products(const float* points, ptrdiff_t stride, int64_t rows, const float* panel,
                         int depth, Use&& use) {
  for_row_blocks<panel_vectors>(rows, [&](auto count, int64_t row) {
    constexpr int m = decltype(count)::value;
    vec<float> acc[m][panel_vectors];
    multiply<float, m, panel_vectors, false, Term>(points + row * stride, stride, panel,
                                                   panel_lanes, depth, acc);
    use(row, acc);
  });
}

struct projection_workspace {
  float *panel, *strip, *sums;
  projection_workspace(const projection_block& b, arena& a) {
    panel = a.take<float>(block_depth * panel_lanes);
    strip = a.take<float>(block_depth * group_blocks);
    sums = a.take<float>(b.rows * panel_lanes);
  }
};

inline size_t project_scratch(const projection_block& b) {
  arena a{nullptr};
  projection_workspace unused(b, a);
  return a.used;
}

/// +-1 by the top bit; sparse: only if the other 31 bits, as a number in [0, 1), are below density.
inline void sign_elements(const uint32_t* words, int groups, double density, float* out) {
  const double size = density < 1 ? 1 / __builtin_sqrt(density) : 1;
  const vec<float> one = broadcast(static_cast<float>(size)), zero = broadcast(0.0f);
  const vec<float> bound = broadcast(static_cast<float>(density)), unit = broadcast(0x1p-31f);
  map_elements(words, groups, out, [=](vec<uint32_t> b) {
    const vec<float> u = signed_to_float((b << 1) >> 1) * unit;
    return xsimd::select(u < bound, pick(b, one, -one), zero);
  });
}

/// Groups of entries of the random matrix.
inline void matrix_elements(const projection_block& b, const philox_keys& keys, uint64_t first,
                            int groups, float* out) {
  if (b.kind == projection_kind::gaussian) {
    const variate_block standard{distribution::normal, 0, 1, 0, 0, 0, 0, 0};
    return fill_groups(b.source, keys, standard, first, groups, out);
  }
  uint32_t words[tile_groups * group_words];
  // A density above 1 keeps every entry: u may round to 1.
  const double density = b.kind == projection_kind::sign ? 2 : b.density;
  for (int done = 0; done < groups; done += tile_groups) {
    const int tile = groups - done < tile_groups ? groups - done : tile_groups;
    philox_words(b.source, keys, first + static_cast<uint64_t>(done), tile, words);
    sign_elements(words, tile, density, out + done * group_words);
  }
}

/// Components [c, c + depth) of the panel's columns, from the strips of 16 that hold them.
inline void draw_panel(const projection_block& b, const philox_keys& keys, int64_t c, int depth,
                       const projection_workspace& ws) {
  constexpr int part = panel_lanes < group_blocks ? panel_lanes : group_blocks;
  const auto strip_groups = static_cast<uint64_t>((b.dim + 3) / 4);
  for (int lane = 0; lane < panel_lanes; lane += part) {
    const int64_t column = b.first_column + lane, strip = column / group_blocks;
    const uint64_t group =
        static_cast<uint64_t>(strip) * strip_groups + static_cast<uint64_t>(c / 4);
    matrix_elements(b, keys, group, (depth + 3) / 4, ws.strip);
    const float* const from = ws.strip + column % group_blocks;
    for (int k = 0; k < depth; ++k)
      for (int i = 0; i < part; i += width<float>)
        store(ws.panel + k * panel_lanes + lane + i, load(from + k * group_blocks + i));
  }
}

inline void project(const projection_block& b) noexcept {
  arena a{static_cast<char*>(b.scratch)};
  const projection_workspace ws(b, a);
  const philox_keys keys(b.source.from.key);
  for (int64_t i = 0; i < b.rows * panel_lanes; ++i) ws.sums[i] = 0;
  for (int64_t c = 0; c < b.dim && !b.stop->requested(); c += block_depth) {
    const int depth = b.dim - c < block_depth ? static_cast<int>(b.dim - c) : block_depth;
    draw_panel(b, keys, c, depth, ws);
    for_products<plain_product>(b.points + c, b.dim, b.rows, ws.panel, depth,
                                [&](int64_t row, const auto& acc) {
                                  float* sum = ws.sums + row * panel_lanes;
                                  for (const auto& line : acc)
                                    for (const vec<float>& v : line) {
                                      store(sum, load(sum) + v);
                                      sum += width<float>;
                                    }
                                });
  }
  for (int64_t row = 0; row < b.rows; ++row)
    for (int64_t i = 0; i < b.columns; ++i)
      b.out[row * b.out_stride + i] = ws.sums[row * panel_lanes + i] * b.factor;
}

}  // namespace
