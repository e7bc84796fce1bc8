// SPDX-License-Identifier: BSD-3-Clause
//
// Random projections, and what they do to the distances of all pairs of points. Both are products
// of rows with panels that are packed (or drawn) one block of components at a time.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/types.hpp"
#include "kernels/random/fill-inl.hpp"
#include "kernels/random/philox-inl.hpp"
#include "kernels/random/random.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/product-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"
#include "stop_signal.hpp"

namespace {

using attnscale::distribution;
using attnscale::element_type;
using attnscale::projection_kind;
using attnscale::detail::group_blocks;
using attnscale::detail::group_words;
using attnscale::detail::matrix;
using attnscale::detail::pairs_block;
using attnscale::detail::point_set;
using attnscale::detail::projection_block;
using attnscale::detail::ratio_sums;
using attnscale::detail::variate_block;

/// Lanes of a panel.
constexpr int panel_lanes = panel_vectors * width<float>;

/// Components of a block: a panel of them is 128 KiB at most, and a float sum has no more terms.
constexpr int block_depth = 512;

inline matrix rows_of(const float* data, int64_t dim, int64_t component) {
  return {data + component, {element_type::float32, dim, 1}};
}

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

// ---- projection --------------------------------------------------------------------------------

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
  // A density above 1 lets every entry pass: u may round to 1.
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

// ---- distances ---------------------------------------------------------------------------------

struct pairs_workspace {
  float *panel, *copy;
  double *before, *after;  ///< [row][lane]
  pairs_workspace(const pairs_block& b, arena& a) {
    const int64_t rows = b.last_row - b.first_row;
    panel = a.take<float>(block_depth * panel_lanes);
    copy = a.take<float>(block_depth * width<float>);
    before = a.take<double>(rows * panel_lanes);
    after = a.take<double>(rows * panel_lanes);
  }
};

inline size_t pairs_scratch(const pairs_block& b) {
  arena a{nullptr};
  pairs_workspace unused(b, a);
  return a.used;
}

/// Points from `point` on, no more than a vector takes; 0 or less past the last one.
inline int rows_left(const pairs_block& b, int64_t point) {
  const int64_t left = b.points - point;
  return left < width<float> ? static_cast<int>(left) : width<float>;
}

/// Squared distances of the block's rows from the points of the panel; float sums of a block of
/// components, double beyond.
inline void distances(const pairs_block& b, const point_set& set, const pairs_workspace& ws,
                      double* out) {
  const int64_t rows = b.last_row - b.first_row, first = b.panel * panel_lanes;
  for (int64_t i = 0; i < rows * panel_lanes; ++i) out[i] = 0;
  for (int64_t c = 0; c < set.dim && !b.stop->requested(); c += block_depth) {
    const int depth = set.dim - c < block_depth ? static_cast<int>(set.dim - c) : block_depth;
    const matrix points = rows_of(set.data, set.dim, c);
    for (int lane = 0; lane < panel_lanes; lane += width<float>)
      pack_lanes(points, first + lane, rows_left(b, first + lane), depth, ws.copy, ws.panel + lane,
                 panel_lanes);
    for_products<squared_difference>(set.data + b.first_row * set.dim + c, set.dim, rows, ws.panel,
                                     depth, [&](int64_t row, const auto& acc) {
                                       double* sum = out + row * panel_lanes;
                                       for (const auto& line : acc)
                                         for (const vec<float>& v : line) {
                                           add_to_double(sum, v);
                                           sum += width<float>;
                                         }
                                     });
  }
}

/// Ratios of one vector of pairs; `valid` leaves out the lanes that are no pair.
struct ratio_lanes {
  vec<double> least, most, first, second;

  ATTNSCALE_INLINE vec<double> add(const double* before, const double* after,
                                   vec_mask<double> valid) {
    const vec<double> zero = broadcast(0.0), infinity = broadcast(limits<double>::infinity);
    const vec<double> x = load(before), y = load(after);
    const vec<double> excess = (y - x) / x;
    // Points that were equal and stayed so: their distance was kept.
    vec<double> e = xsimd::select(y == x, zero, excess);
    least = min_or(xsimd::select(valid, e, infinity), least);
    most = max_or(xsimd::select(valid, e, -infinity), most);
    e = xsimd::select(valid, e, zero);
    first = first + e;
    second = second + e * e;
    return e;
  }
};

inline double sum_lanes(vec<double> v) {
  double lanes[width<double>], sum = 0;
  store(lanes, v);
  for (const double lane : lanes) sum += lane;
  return sum;
}

inline void reduce(const ratio_lanes& lanes, ratio_sums& sums) {
  double least[width<double>], most[width<double>];
  store(least, lanes.least);
  store(most, lanes.most);
  for (int r = 0; r < width<double>; ++r) {
    sums.least = least[r] < sums.least ? least[r] : sums.least;
    sums.most = most[r] > sums.most ? most[r] : sums.most;
  }
  sums.first += sum_lanes(lanes.first);
  sums.second += sum_lanes(lanes.second);
}

/// One row: pairs (row, j) with row < j < points.
inline void add_row(const pairs_block& b, const pairs_workspace& ws, int64_t row) {
  constexpr int w = width<double>;
  const vec<double> infinity = broadcast(limits<double>::infinity), zero = broadcast(0.0);
  ratio_lanes lanes{infinity, -infinity, zero, zero};
  double index[w], excess[panel_lanes];
  for (int i = 0; i < w; ++i) index[i] = static_cast<double>(b.panel * panel_lanes + i);
  const vec<double> self = broadcast(static_cast<double>(row));
  const vec<double> end = broadcast(static_cast<double>(b.points));
  const int64_t at = (row - b.first_row) * panel_lanes;
  for (int i = 0; i < panel_lanes; i += w) {
    const vec<double> j = load(index) + broadcast(static_cast<double>(i));
    const vec_mask<double> valid = (j > self) & (j < end);
    store(excess + i, lanes.add(ws.before + at + i, ws.after + at + i, valid));
  }
  reduce(lanes, *b.sums);
  for (int64_t k = 0; k < b.n_eps; ++k) {
    const vec<double> bound = broadcast(b.eps[k]);
    vec<double> count = zero;
    for (int i = 0; i < panel_lanes; i += w)
      count = count + xsimd::select(xsimd::abs(load(excess + i)) > bound, broadcast(1.0), zero);
    b.outside[k] += static_cast<int64_t>(sum_lanes(count));
  }
}

inline void pairs(const pairs_block& b) noexcept {
  arena a{static_cast<char*>(b.scratch)};
  const pairs_workspace ws(b, a);
  distances(b, b.before, ws, ws.before);
  distances(b, b.after, ws, ws.after);
  if (b.stop->requested()) return;
  for (int64_t row = b.first_row; row < b.last_row; ++row) add_row(b, ws, row);
}

}  // namespace
