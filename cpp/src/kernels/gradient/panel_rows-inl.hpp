// SPDX-License-Identifier: BSD-3-Clause
//
// Gradients of the scores of entmax, alpha <= 2, and top-k for rows with many keys: weights and
// gradients of weights lie in panels, [vector of rows][key][lane], for all keys of the block.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/gradient/block.hpp"
#include "kernels/gradient/lists-inl.hpp"
#include "kernels/gradient/queries-inl.hpp"
#include "kernels/gradient/workspace-inl.hpp"
#include "kernels/numbers.hpp"
#include "kernels/simd/exp-inl.hpp"
#include "kernels/simd/log-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"

namespace {

/// Calls f(slope), where slope(p) is u of the Jacobian diag(u) - u u^T / sum u: p^(2 - alpha), 0 at
/// 0.
template <class T, class F>
ATTNSCALE_INLINE void with_slope(double alpha, F&& f) {
  const vec<T> zero = broadcast(T(0)), one = broadcast(T(1));
  if (alpha == 2) return f([=](vec<T> p) { return xsimd::select(p > zero, one, zero); });
  if (alpha == 1) return f([](vec<T> p) { return p; });
  if (alpha == 1.5) return f([](vec<T> p) { return xsimd::sqrt(p); });
  const vec<double> power = broadcast(attnscale::detail::log2e * (alpha - 2));
  f([=](vec<T> p) {
    T lanes[width<T>];
    store(lanes, p);
    for (int i = 0; i < width<T>; i += width<double>) {
      const vec<double> q = load_widened(lanes + i), none = broadcast(0.0);
      const vec<double> u = exp2(clamp_exponent(minus_log(q, none) * power));
      store_narrowed(lanes + i, xsimd::select(q > none, u, none));
    }
    return load(lanes);
  });
}

/// Weights and gradients of vector n of rows, from a given key on.
template <class T>
struct panel_at {
  T *weight, *gradient;
};
template <class T>
inline panel_at<T> panel_of(const gradient_block& b, const gradient_lists<T>& ws, int n,
                            int64_t key) {
  const int64_t at = (n * (b.key_end - b.key_begin) + key) * width<T>;
  return {static_cast<T*>(b.lists.panels) + at, ws.panel_gradient + at};
}

/// Writes the weights of rows with lists into the panels.
template <class T>
inline void add_lists_to_panels(const gradient_block& b, const gradient_lists<T>& ws) {
  constexpr int w = width<T>;
  for (int r = 0; r < b.rows; ++r) {
    T* const out = panel_of(b, ws, r / w, 0).weight + r % w;
    for (int64_t i = b.lists.begin[r]; i < b.lists.begin[r] + b.lists.count[r]; ++i)
      out[static_cast<ptrdiff_t>(b.lists.key[i]) * w] = static_cast<T>(b.lists.weight[i]);
  }
}

/// Sums of a vector of rows, in double.
template <class T>
struct slope_sums {
  double total[width<T>] = {}, sum[width<T>] = {};

  /// Mean of the gradients of weights, weighted by the slopes; 0 in a row without keys.
  double mean(int r) const { return total[r] > 0 ? sum[r] / total[r] : 0; }
};

/// Adds the keys of a tile to the sums of slopes and of their products with the gradients of the
/// weights.
template <class T, class Slope>
inline void add_slopes(const panel_at<T>& at, int keys, const Slope& slope, slope_sums<T>& sums) {
  constexpr int w = width<T>, wd = width<double>, parts = w / wd;
  vec<double> total[parts], sum[parts];
  for (int i = 0; i < parts; ++i) {
    total[i] = load(sums.total + i * wd);
    sum[i] = load(sums.sum + i * wd);
  }
  for (int j = 0; j < keys; ++j) {
    T lanes[w];
    store(lanes, slope(load(at.weight + j * w)));
#pragma GCC unroll 2
    for (int i = 0; i < parts; ++i) {
      const vec<double> u = load_widened(lanes + i * wd);
      total[i] = total[i] + u;
      sum[i] = fma(u, load_widened(at.gradient + j * w + i * wd), sum[i]);
    }
  }
  for (int i = 0; i < parts; ++i) {
    store(sums.total + i * wd, total[i]);
    store(sums.sum + i * wd, sum[i]);
  }
}

/// Adds the keys of a tile to the gradients by alpha of all rows, see gradient_of_alpha().
template <class T>
inline void add_to_alpha(const panel_at<T>& at, int keys, double alpha, const double* mean,
                         int rows, double* d_alpha) {
  constexpr int w = width<T>, wd = width<double>;
  const vec<double> zero = broadcast(0.0), step = broadcast(1 / (alpha - 1));
  for (int i = 0; i < w && i < rows; i += wd) {
    vec<double> sum = zero;
    for (int j = 0; j < keys; ++j) {
      const vec<double> p = load_widened(at.weight + j * w + i);
      const vec<double> x = load_widened(at.gradient + j * w + i) - load(mean + i);
      const vec<double> each = p * x * (step + minus_log(p, zero));
      sum = sum + xsimd::select(p > broadcast(limits<double>::least_normal), each, zero);
    }
    double lanes[wd];
    store(lanes, sum * step);
    for (int k = 0; k < wd && i + k < rows; ++k) d_alpha[i + k] += lanes[k];
  }
}

/// differentiate_lists() for a block with panels.
template <class T>
inline bool differentiate_panels(const gradient_block& b, gradient_workspace<T>& ws,
                                 tile_walk& walk) {
  constexpr int w = width<T>;
  const bool has_value = b.grad_output.data != nullptr;
  gradient_lists<T>& lists = ws.lists;
  slope_sums<T> sums[max_gradient_rows / w];
  add_lists_to_panels(b, lists);
  with_slope<T>(b.alpha, [&](const auto& slope) {
    walk.for_tiles([&](const key_tile& at) {
      row_view<T> v{nullptr, 0};
      if (has_value) v = view_rows(b.value, at.key, at.keys, b.value_dim, ws.value_copy);
      for_panels<T>(b.rows, [&](query_panel panel) {
        multiply_values(b, ws, panel, {0, at.keys, 0, panel.vectors}, v);
        const T* const products = ws.gradients + panel.lane * ws.panel_keys;
        for (int n = 0; n < panel.vectors; ++n) {
          const int vector = panel.lane / w + n;
          const panel_at<T> to = panel_of(b, lists, vector, at.key - b.key_begin);
          for (int j = 0; j < at.keys; ++j)
            store(to.gradient + j * w, load(products + (j * panel.vectors + n) * w));
          add_slopes(to, at.keys, slope, sums[vector]);
        }
      });
    });
  });
  bool clean = true;
  for (int r = 0; r < gradient_block_rows<T>; ++r) lists.mean[r] = 0;
  for (int r = 0; r < b.rows; ++r) {
    lists.mean[r] = sums[r / w].mean(r % w);
    const double nan = mark_row(b, ws, r);
    if (b.d_alpha) b.d_alpha[r] = nan;
    clean = clean && nan == 0;
  }
  if (b.d_alpha)
    walk.for_tiles([&](const key_tile& at) {
      for (int r = 0; r < b.rows; r += w)
        add_to_alpha(panel_of(b, lists, r / w, at.key - b.key_begin), at.keys, b.alpha,
                     lists.mean + r, b.rows - r, b.d_alpha + r);
    });
  return clean;
}

/// fill_from_lists() for a block with panels.
template <class T>
inline bool fill_from_panels(const gradient_block& b, const gradient_lists<T>& ws,
                             const gradient_lanes<T>& row, query_panel panel, const key_tile& at,
                             T* weights, T* gradients) {
  constexpr int w = width<T>;
  const int lanes = panel.vectors * w;
  bool some = false;
  with_slope<T>(b.alpha, [&](const auto& slope) {
    for (int n = 0; n < panel.vectors; ++n) {
      const int vector = panel.lane / w + n;
      const panel_at<T> from = panel_of(b, ws, vector, at.key - b.key_begin);
      T means[w];
      for (int r = 0; r < w; ++r) means[r] = static_cast<T>(ws.mean[vector * w + r]);
      const vec<T> mean = load(means), zero = load(row.factor + n * w) * broadcast(T(0));
      const vec<T> zero_gradient = load(row.constant + n * w) + zero;
      vec<T> most = zero_gradient;
      for (int j = 0; j < at.keys; ++j) {
        const vec<T> p = load(from.weight + j * w);
        const vec<T> x = slope(p) * (load(from.gradient + j * w) - mean);
        most = max_or(p, most);
        store(weights + j * lanes + n * w, p + zero);
        store(gradients + j * lanes + n * w, x + zero_gradient);
      }
      some = some || !xsimd::all(most == broadcast(T(0)));
    }
  });
  return some;
}

}  // namespace
