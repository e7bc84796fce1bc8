// SPDX-License-Identifier: BSD-3-Clause
//
// Distances of all pairs of points before and after a projection: squared differences of rows and
// packed panels, one block of components at a time.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/types.hpp"
#include "kernels/random/projection-inl.hpp"
#include "kernels/random/random.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/stop_signal.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/product-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::element_type;
using attnscale::detail::distance_block;
using attnscale::detail::matrix;
using attnscale::detail::point_set;
using attnscale::detail::ratio_sums;

inline matrix rows_of(const float* data, int64_t dim, int64_t component) {
  return {data + component, {element_type::float32, static_cast<ptrdiff_t>(dim), 1}};
}

struct distance_workspace {
  float *panel, *copy;
  double *before, *after;  ///< [row][lane]
  distance_workspace(const distance_block& b, arena& a) {
    const int64_t rows = b.last_row - b.first_row;
    panel = a.take<float>(block_depth * panel_lanes);
    copy = a.take<float>(block_depth * width<float>);
    before = a.take<double>(rows * panel_lanes);
    after = a.take<double>(rows * panel_lanes);
  }
};

inline size_t distance_scratch(const distance_block& b) {
  arena a{nullptr};
  distance_workspace unused(b, a);
  return a.used;
}

/// Points from `point` on, at most a vector; 0 or less past the last one.
inline int rows_left(const distance_block& b, int64_t point) {
  const int64_t left = b.points - point;
  return left < width<float> ? static_cast<int>(left) : width<float>;
}

/// Squared distances of the block's rows from the points of the panel; float sums within a block of
/// components, double beyond. The caller sums again where float overflows or underflows.
inline void distances(const distance_block& b, const point_set& set, const distance_workspace& ws,
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

inline double squared_distance(const float* a, const float* b, int64_t dim) {
  double sum = 0;
  for (int64_t c = 0; c < dim; ++c) {
    const double change = static_cast<double>(a[c]) - static_cast<double>(b[c]);
    sum += change * change;
  }
  return sum;
}

/// Sums again in double where squares or their sums may have left the range of float. A square that
/// underflows is below 2^-149: 2^20 of them do not change a sum of 2^-100 visibly.
inline void sum_again_beyond_float(const distance_block& b, const point_set& set, double* sums) {
  constexpr double least = 0x1p-100, most = 0x1p126;
  const int64_t first = b.panel * panel_lanes;
  for (int64_t row = b.first_row; row < b.last_row && !b.stop->requested(); ++row) {
    double* const of_row = sums + (row - b.first_row) * panel_lanes;
    for (int lane = 0; lane < panel_lanes; ++lane) {
      const int64_t j = first + lane;
      if (j > row && j < b.points && !(of_row[lane] >= least && of_row[lane] <= most))
        of_row[lane] = squared_distance(set.data + row * set.dim, set.data + j * set.dim, set.dim);
    }
  }
}

/// Ratios of one vector of pairs; `valid` masks the lanes that are pairs.
struct ratio_lanes {
  vec<double> least, most, first, second;

  ATTNSCALE_INLINE vec<double> add(const double* before, const double* after,
                                   vec_mask<double> valid) {
    const vec<double> zero = broadcast(0.0), infinity = broadcast(limits<double>::infinity);
    const vec<double> x = load(before), y = load(after);
    const vec<double> excess = (y - x) / x;
    // Points that were equal and stayed so: their distance is kept.
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

/// Adds one row: pairs (row, j) with row < j < points.
inline void add_row(const distance_block& b, const distance_workspace& ws, int64_t row) {
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

inline void distance_ratios(const distance_block& b) noexcept {
  arena a{static_cast<char*>(b.scratch)};
  const distance_workspace ws(b, a);
  distances(b, b.before, ws, ws.before);
  distances(b, b.after, ws, ws.after);
  sum_again_beyond_float(b, b.before, ws.before);
  sum_again_beyond_float(b, b.after, ws.after);
  if (b.stop->requested()) return;
  for (int64_t row = b.first_row; row < b.last_row; ++row) add_row(b, ws, row);
}

}  // namespace
