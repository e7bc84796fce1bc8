// SPDX-License-Identifier: BSD-3-Clause
//
// Evaluations for the search for each row's scale: the raw products of one panel of queries,
// computed once and kept if they fit, and the sums over the weights at any scale. The search itself
// is baseline code (solve.cpp).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/exp-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/product-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::detail::solve_block;
using attnscale::detail::solve_rows;
using attnscale::detail::solve_sums;

template <class T>
struct solve_workspace {
  tile_workspace<T> tile;
  T* products;

  /// `keys`: number of keys that the panel may see. Without b.keep one tile of products at a time.
  solve_workspace(const solve_block& b, int64_t keys, arena& a) : tile(b, 0, a) {
    const int64_t lanes = (b.rows + width<T> - 1) / width<T> * width<T>;
    products = b.keep ? a.take<T>(keys * lanes) : tile.scores;
  }
};

/// Raw products for a search: masked keys are -inf, which stays so at any scale > 0.
template <class T>
inline void mask_products(const T* bias, const vector_keys& seen, int keys, T* raw) {
  constexpr int w = width<T>;
  const vec<T> masked = broadcast(masked_score<T>), nothing = broadcast(-limits<T>::infinity);
  for (int n = 0; n < seen.vectors; ++n)
    for (int j = 0; j < keys; ++j) {
      const int at = (j * seen.vectors + n) * w;
      const bool inside = seen.begin[n] <= j && j < seen.end[n];
      store(raw + at,
            inside ? xsimd::select(load(bias + at) == masked, nothing, load(raw + at)) : nothing);
    }
}

/// Counts and moments of one vector of products. `bad` becomes NaN if one is not finite.
template <class T, bool Masked>
ATTNSCALE_INLINE void add_product_moments(const T* raw, const T* bias, vec<T> top, vec<T> center,
                                          vec<T> (&sums)[5]) {
  const vec<T> zero = broadcast(T(0)), one = broadcast(T(1)), r = load(raw);
  vec<T> d = r - center, bad = r - r, seen = one;
  if constexpr (Masked) {
    const vec_mask<T> masked = load(bias) == broadcast(masked_score<T>);
    d = xsimd::select(masked, zero, d);
    bad = xsimd::select(masked, zero, bad);
    seen = xsimd::select(masked, zero, one);
  }
  sums[0] = sums[0] + seen;
  sums[1] = sums[1] + xsimd::select(r == top, seen, zero);
  sums[2] = sums[2] + d;
  sums[3] = fma(d, d, sums[3]);
  sums[4] = sums[4] + bad;
}

template <class T, bool Masked>
inline void add_tile_moments(const T* raw, const T* bias, const tile_products<T>& tile,
                             solve_rows& rows) {
  constexpr int w = width<T>;
  const vector_keys& seen = tile.seen;
  for (int n = 0; n < seen.vectors; ++n) {
    T top[w], center[w];
    store(top, tile.most[n]);
    for (int r = 0; r < w; ++r) {
      const int lane = n * w + r;
      const double before = rows.top[lane], most = static_cast<double>(top[r]);
      if (before == -limits<double>::infinity) rows.center[lane] = most;
      if (most > before) rows.top[lane] = most, rows.ties[lane] = 0;
      top[r] = static_cast<T>(rows.top[lane]);
      center[r] = static_cast<T>(rows.center[lane]);
    }
    vec<T> sums[5];
    for (vec<T>& sum : sums) sum = broadcast(T(0));
    for (int j = seen.begin[n]; j < seen.end[n]; ++j) {
      const int at = (j * seen.vectors + n) * w;
      add_product_moments<T, Masked>(raw + at, bias + at, load(top), load(center), sums);
    }
    add_to_double(rows.count + n * w, sums[0]);
    add_to_double(rows.ties + n * w, sums[1]);
    add_to_double(rows.first + n * w, sums[2]);
    add_to_double(rows.second + n * w, sums[3]);
    add_to_double(rows.bad + n * w, sums[4]);
  }
}

/// Rows of one vector at their current scales. A float scale would move in steps of 6e-8, and the
/// entropy of a row with a wide spread of scores in steps of 1e-6: `low` is the rounding error of
/// the scale in float.
template <class T>
struct solve_point {
  vec<T> scale, low, top, center;
  vec<T> floor;  ///< products this far below the top, and masked ones, have zero weight

  solve_point(const solve_block& b, int lane) {
    constexpr int w = width<T>;
    T scales[w], lows[w], tops[w], centers[w];
    for (int r = 0; r < w; ++r) {
      const bool there = lane + r < b.rows;
      const double wanted = there ? b.scale[lane + r] * log2e : 0;
      scales[r] = static_cast<T>(wanted);
      lows[r] = static_cast<T>(wanted - static_cast<double>(scales[r]));
      tops[r] = static_cast<T>(b.found->top[lane + r]);
      centers[r] = there ? static_cast<T>(b.center[lane + r]) : T(0);
    }
    scale = load(scales);
    low = load(lows);
    floor = broadcast(exp2_terms<T>::lowest) / scale;
    top = load(tops);
    center = load(centers);
  }

  bool wanted() const { return any<T>(scale > broadcast(T(0))); }

  /// Adds one key. Scores fall from 0 at the top key, so that no reference moves; u = t - center
  /// keeps the digits of the moments.
  ATTNSCALE_INLINE void absorb(const T* raw, vec<T> (&sums)[4]) const {
    const vec<T> x = max_or(floor, load(raw) - top);  // NaN is kept
    vec<T> t = x * scale;                             // >= lowest, to rounding
    if constexpr (sizeof(T) == sizeof(float)) t = fma(x, low, t);
    const vec<T> u = t - center;
    const vec<T> p = exp2(t), first = p * u, second = first * u;
    sums[0] = sums[0] + p;
    sums[1] = sums[1] + first;
    sums[2] = sums[2] + second;
    sums[3] = fma(second, u, sums[3]);
  }
};

/// Sums of one vector of rows over the keys [begin, end) of a tile, `step` apart; `begin` is even.
template <class T>
inline void absorb_at_scale(const T* raw, int begin, int end, ptrdiff_t step,
                            const solve_point<T>& at, solve_sums& sums, int lane) {
  constexpr int parts = 2;
  vec<T> part[parts][4];
  for (int i = 0; i < parts; ++i)
    for (int k = 0; k < 4; ++k) part[i][k] = broadcast(T(0));
  int j = begin;
  for (raw += j * step; j + 2 <= end; j += 2, raw += 2 * step) {
    at.absorb(raw, part[0]);
    at.absorb(raw + step, part[1]);
  }
  if (j < end) at.absorb(raw, part[0]);
  add_to_double(sums.weight + lane, part[0][0] + part[1][0]);
  add_to_double(sums.first + lane, part[0][1] + part[1][1]);
  add_to_double(sums.second + lane, part[0][2] + part[1][2]);
  add_to_double(sums.third + lane, part[0][3] + part[1][3]);
}

/// One panel of queries: the whole block.
template <class T>
class solve_run {
 public:
  explicit solve_run(const solve_block& block)
      : b_(block),
        walk_(block),
        arena_{static_cast<char*>(block.scratch)},
        ws_(block, walk_.visible.keys(), arena_) {}

  /// Fills block.found, and the kept scores.
  void gather() {
    solve_rows& rows = *b_.found;
    for (int r = 0; r < lanes_; ++r) {
      rows.top[r] = -limits<double>::infinity;
      rows.count[r] = rows.ties[r] = rows.center[r] = 0;
      rows.first[r] = rows.second[r] = rows.bad[r] = 0;
    }
    pack_queries(b_, panel_, ws_.tile.rows, ws_.tile.query);
    walk_.for_tiles([&](const key_tile& at) { gather_tile(at); });
  }

  /// Fills block.sums at block.scale.
  void evaluate() {
    solve_sums& sums = *b_.sums;
    for (int r = 0; r < lanes_; ++r)
      sums.weight[r] = sums.first[r] = sums.second[r] = sums.third[r] = 0;
    walk_.for_tiles([&](const key_tile& at) {
      T* const raw = place(at.key);
      if (!b_.keep) {
        tile_products<T> tile;
        if (!multiply(at, raw, tile)) return;
        if (tile.biased) mask_products(ws_.tile.bias, tile.seen, at.keys, raw);
      }
      const vector_keys seen = keys_in_tile<T>(b_, at, panel_);
      for (int n = 0; n < panel_.vectors; ++n) {
        const solve_point<T> point(b_, n * w);
        const int begin = seen.begin[n] / 2 * 2;  // each key stays in its chain
        if (point.wanted())
          absorb_at_scale(raw + n * w, begin, seen.end[n], lanes_, point, sums, n * w);
      }
    });
  }

 private:
  static constexpr int w = width<T>;

  /// Memory for the products of the tile from `key` on.
  T* place(int64_t key) {
    return b_.keep ? ws_.products + (key - walk_.visible.first()) * lanes_ : ws_.products;
  }

  bool multiply(const key_tile& at, T* raw, tile_products<T>& tile) {
    return multiply_tile(b_, ws_.tile, at, ws_.tile.keys(b_, at), panel_, ws_.tile.query, raw,
                         tile);
  }

  void gather_tile(const key_tile& at) {
    T* const raw = place(at.key);
    tile_products<T> tile;
    if (!multiply(at, raw, tile)) {
      for (int i = 0; i < at.keys * lanes_; i += w) store(raw + i, broadcast(-limits<T>::infinity));
    } else if (tile.biased) {
      find_extremes(ws_.tile.bias, raw, tile);
      add_tile_moments<T, true>(raw, ws_.tile.bias, tile, *b_.found);
      mask_products(ws_.tile.bias, tile.seen, at.keys, raw);
    } else {
      add_tile_moments<T, false>(raw, ws_.tile.bias, tile, *b_.found);
    }
  }

  const solve_block& b_;
  const query_panel panel_{0, (b_.rows + w - 1) / w};
  const int lanes_ = panel_.vectors * w;
  tile_walk walk_;
  arena arena_;
  solve_workspace<T> ws_;
};

template <class T>
size_t solve_scratch(const solve_block& block) {
  arena a{nullptr};
  solve_workspace<T> unused(block, key_ranges(block).keys(), a);
  return a.used;
}

template <class T>
void solve_gather(const solve_block& block) noexcept {
  solve_run<T>(block).gather();
}

template <class T>
void solve_evaluate(const solve_block& block) noexcept {
  solve_run<T>(block).evaluate();
}

}  // namespace
