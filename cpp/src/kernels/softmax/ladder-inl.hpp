// SPDX-License-Identifier: BSD-3-Clause
//
// Rows, and weights that keys receive, at ladders of scales from one pass over q . k: the weight at
// twice a scale is the square of the weight there, so that only the lowest scale of a ladder costs
// an exponential.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/numbers.hpp"
#include "kernels/simd/exp-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::detail::ladder_block;
using attnscale::detail::ladder_of_scales;
using attnscale::detail::ladder_rungs;
using attnscale::detail::log2e;
using attnscale::detail::received_ladder_block;

/// Weights from which squares are taken are at least this, so that no square is denormal.
template <class T>
constexpr T least_root = sizeof(T) == 4 ? T(0x1p-63) : T(0x1p-511);

/// Weight at twice the scale.
template <class T>
ATTNSCALE_INLINE vec<T> squared(vec<T> weight) {
  const vec<T> root = max_or(broadcast(least_root<T>), weight);
  return root * root;
}

/// Exponent of a weight in base 2; exp2 of `lowest` is 0.
template <class T>
ATTNSCALE_INLINE vec<T> ladder_exponent(const T* raw, vec<T> edge, vec<T> base,
                                        vec_mask<T> hidden) {
  return xsimd::select(hidden, broadcast(exp2_terms<T>::lowest),
                       clamp_exponent((load(raw) - edge) * base));
}
template <class T>
ATTNSCALE_INLINE vec<T> ladder_exponent(const T* raw, vec<T> edge, vec<T> base) {
  return clamp_exponent((load(raw) - edge) * base);
}

/// Lanes of a vector that do not see a key.
template <class T>
ATTNSCALE_INLINE vec_mask<T> hidden_lanes(const T* bias) {
  return load(bias) == broadcast(masked_score<T>);
}

/// Calls f(count_t<N>) for a ladder of N rungs.
template <class F>
ATTNSCALE_INLINE void with_rungs(int rungs, F&& f) {
  static_assert(ladder_rungs == 5);
  if (rungs == 1) return f(count_t<1>{});
  if (rungs == 2) return f(count_t<2>{});
  if (rungs == 3) return f(count_t<3>{});
  if (rungs == 4) return f(count_t<4>{});
  return f(count_t<5>{});
}

/// Number of scales of ladder b.
inline int rungs_of(const ladder_of_scales& scales, int64_t b) {
  return static_cast<int>((scales.n_scales - b + scales.n_bases - 1) / scales.n_bases);
}

/// Products of one vector of rows with the keys [begin, end) of a tile, `step` apart.
template <class T>
struct product_column {
  const T *raw, *bias;
  ptrdiff_t step;
  int begin, end;
};

/// Adds the weights of a column, and their products with the exponents at the base, to the sums of
/// each rung, which are `next` apart.
template <class T, int Rungs, bool Masked>
inline void add_ladder(const product_column<T>& c, vec<T> base, vec<T> edge, double* weights,
                       double* firsts, ptrdiff_t next) {
  vec<T> weight[Rungs], first[Rungs];
#pragma GCC unroll 5
  for (int m = 0; m < Rungs; ++m) weight[m] = first[m] = broadcast(T(0));
  const auto exponent = [&](int j) ATTNSCALE_INLINE_LAMBDA {
    const T* const raw = c.raw + j * c.step;
    if constexpr (Masked)
      return ladder_exponent<T>(raw, edge, base, hidden_lanes(c.bias + j * c.step));
    else
      return ladder_exponent<T>(raw, edge, base);
  };
  int j = c.begin;
  for (; j + 2 <= c.end; j += 2) {
    const vec<T> t = exponent(j), u = exponent(j + 1);
    vec<T> p = exp2(t), q = exp2(u);
#pragma GCC unroll 5
    for (int m = 0; m < Rungs; ++m) {
      if (m > 0) p = squared(p), q = squared(q);
      weight[m] = weight[m] + (p + q);
      first[m] = fma(p, t, fma(q, u, first[m]));
    }
  }
  if (j < c.end) {
    const vec<T> t = exponent(j);
    vec<T> p = exp2(t);
#pragma GCC unroll 5
    for (int m = 0; m < Rungs; ++m) {
      if (m > 0) p = squared(p);
      weight[m] = weight[m] + p;
      first[m] = fma(p, t, first[m]);
    }
  }
#pragma GCC unroll 5
  for (int m = 0; m < Rungs; ++m) {
    add_to_double(weights + m * next, weight[m]);
    add_to_double(firsts + m * next, first[m]);
  }
}

template <class T>
struct ladder_workspace {
  tile_workspace<T> tile;
  T *base, *edge, *top;  ///< [base][row]

  ladder_workspace(const ladder_block& b, arena& a) : tile(b, 0, a) {
    const int64_t lanes = b.n_bases * block_rows<T>;
    base = a.take<T>(lanes);
    edge = a.take<T>(lanes);
    top = a.take<T>(lanes);
  }
};

/// Rows at ladders of scales. Weights are relative to the score of `edge`, a product within a
/// factor of 2^lag of the largest weight at the highest rung.
template <class T>
class ladder_run {
 public:
  explicit ladder_run(const ladder_block& block)
      : b_(block), arena_{static_cast<char*>(block.scratch)}, ws_(block, arena_), walk_(block) {}

  void run() {
    prepare();
    walk_.for_tiles([&](const key_tile& at) {
      const row_view<T> k = ws_.tile.keys(b_, at);
      for_panels<T>(b_.rows, [&](query_panel panel) { tile(panel, at, k); });
    });
    if (walk_.stopped) return;
    for (int64_t at = 0; at < b_.n_bases * block_rows<T>; ++at) {
      b_.base[at] = static_cast<double>(ws_.base[at]);
      b_.edge[at] = static_cast<double>(ws_.edge[at]);
      b_.top[at] = static_cast<double>(ws_.top[at]);
    }
  }

 private:
  static constexpr int w = width<T>;
  static constexpr ptrdiff_t lanes = block_rows<T>;
  static constexpr T lag = T(8);

  void prepare() {
    for (int64_t b = 0; b < b_.n_bases; ++b)
      for (int r = 0; r < block_rows<T>; ++r) {
        const int64_t at = b * lanes + r;
        const int64_t row = r < b_.rows ? r : 0;
        ws_.base[at] = static_cast<T>(b_.scale[row * b_.scale_row + b] * log2e);
        ws_.edge[at] = ws_.top[at] =
            ws_.base[at] < T(0) ? limits<T>::infinity : -limits<T>::infinity;
      }
    for (int64_t i = 0; i < b_.n_scales * lanes; ++i) b_.weight[i] = b_.first[i] = 0;
    for (int r = 0; r < block_rows<T>; ++r) b_.first_key[r] = static_cast<double>(masked_score<T>);
    for_panels<T>(b_.rows, [&](query_panel panel) {
      pack_queries(b_, panel, ws_.tile.rows, ws_.tile.query + panel.lane * b_.head_dim);
    });
  }

  void tile(query_panel panel, const key_tile& at, row_view<T> k) {
    tile_products<T> t;
    const T* const query = ws_.tile.query + panel.lane * b_.head_dim;
    T* const raw = ws_.tile.scores;
    if (!multiply_tile(b_, ws_.tile, at, k, panel, query, raw, t)) return;
    if (t.biased) find_extremes(ws_.tile.bias, raw, t);
    for (int n = 0; n < t.seen.vectors; ++n) {
      const product_column<T> column{raw + n * w, ws_.tile.bias + n * w, t.seen.vectors * w,
                                     t.seen.begin[n], t.seen.end[n]};
      if (column.begin >= column.end) continue;
      const int row = panel.lane + n * w;
      if (at.key == 0 && column.begin == 0) keep_first_key(column, t.biased, row);
      const bool infinite = any<T>((t.most[n] == broadcast(limits<T>::infinity)) |
                                   (t.least[n] == broadcast(-limits<T>::infinity)));
      for (int64_t b = 0; b < b_.n_bases; ++b) {
        move_edge(b, row, t.most[n], t.least[n]);
        add(b, row, column, t.biased);
        if (infinite) lose_rows(b, row, t.most[n], t.least[n]);
      }
    }
  }

  void keep_first_key(const product_column<T>& column, bool biased, int row) {
    T products[w];
    vec<T> x = load(column.raw);
    if (biased) x = xsimd::select(hidden_lanes(column.bias), broadcast(masked_score<T>), x);
    store(products, x);
    for (int r = 0; r < w; ++r) b_.first_key[row + r] = static_cast<double>(products[r]);
  }

  void add(int64_t b, int row, const product_column<T>& column, bool biased) {
    const int64_t at = b * lanes + row;
    const vec<T> base = load(ws_.base + at), edge = load(ws_.edge + at);
    const ptrdiff_t next = b_.n_bases * lanes;
    with_rungs(rungs_of(b_, b), [&](auto rungs) ATTNSCALE_INLINE_LAMBDA {
      constexpr int n = decltype(rungs)::value;
      if (biased)
        add_ladder<T, n, true>(column, base, edge, b_.weight + at, b_.first + at, next);
      else
        add_ladder<T, n, false>(column, base, edge, b_.weight + at, b_.first + at, next);
    });
  }

  /// Turns rows with an infinite product into NaN, even if its weight is 0.
  void lose_rows(int64_t b, int row, vec<T> most, vec<T> least) {
    T high[w], low[w];
    store(high, most);
    store(low, least);
    for (int r = 0; r < w; ++r)
      if (high[r] == limits<T>::infinity || low[r] == -limits<T>::infinity)
        for (int64_t s = b; s < b_.n_scales; s += b_.n_bases)
          b_.weight[s * lanes + row + r] = __builtin_nan("");
  }

  /// Raises top, and edges that have fallen too far behind, with their sums.
  void move_edge(int64_t b, int row, vec<T> most, vec<T> least) {
    const int64_t at = b * lanes + row;
    const vec<T> base = load(ws_.base + at), zero = broadcast(T(0)), old = load(ws_.edge + at);
    const vec_mask<T> falls = base < zero;
    const vec<T> seen = xsimd::select(falls, least, most);
    vec<T> top = load(ws_.top + at);
    const vec_mask<T> higher = xsimd::select(falls, top, seen) > xsimd::select(falls, seen, top);
    top = xsimd::select(higher, seen, top);
    store(ws_.top + at, top);
    const T rise = T(1 << (rungs_of(b_, b) - 1));
    const vec_mask<T> is_new = differ(old - old, zero) & (top - top == zero);
    const vec_mask<T> moves = ((top - old) * base * broadcast(rise) > broadcast(lag)) | is_new;
    if (!any<T>(moves)) return;
    const vec<T> edge = xsimd::select(moves, top, old), shift = (old - edge) * base;
    store(ws_.edge + at, edge);
    T factors[w], shifts[w];
    store(factors, exp2(clamp_exponent(shift)));
    store(shifts, shift);
    for (int r = 0; r < w; ++r)
      if (shifts[r] < T(0)) {  // else nothing moved, or there is no sum yet
        double factor = static_cast<double>(factors[r]);
        const auto move = static_cast<double>(shifts[r]);
        for (int64_t s = b; s < b_.n_scales; s += b_.n_bases, factor *= factor)
          move_sums(s * lanes + row + r, factor, move);
      }
  }

  void move_sums(int64_t i, double factor, double shift) {
    if (factor == 0) {
      b_.weight[i] *= 0;
      b_.first[i] *= 0;
      return;
    }
    b_.first[i] = factor * (b_.first[i] + shift * b_.weight[i]);
    b_.weight[i] *= factor;
  }

  const ladder_block& b_;
  arena arena_;
  ladder_workspace<T> ws_;
  tile_walk walk_;
};

template <class T>
void ladder(const ladder_block& block) noexcept {
  ladder_run<T>(block).run();
}

/// Adds to each rung the weights of a column times `share` of their rows. The rows are the keys of
/// the kernel: `top` and `share` start at the tile's first.
template <class T, int Rungs, bool Masked>
inline void receive_ladder(const product_column<T>& c, vec<T> base, const T* top, const T* share,
                           const ladder_of_scales& scales, double* sums, ptrdiff_t next) {
  vec<T> sum[Rungs];
#pragma GCC unroll 5
  for (int m = 0; m < Rungs; ++m) sum[m] = broadcast(T(0));
  const auto add = [&](int j) ATTNSCALE_INLINE_LAMBDA {
    const T *const raw = c.raw + j * c.step, *const shares = share + j * scales.n_scales;
    const vec<T> edge = broadcast(top[j]);
    vec<T> p;
    vec_mask<T> hidden;
    if constexpr (Masked) {
      hidden = hidden_lanes(c.bias + j * c.step);
      p = exp2(ladder_exponent<T>(raw, edge, base, hidden));
    } else {
      p = exp2(ladder_exponent<T>(raw, edge, base));
    }
#pragma GCC unroll 5
    for (int m = 0; m < Rungs; ++m) {
      if (m > 0) p = squared(p);
      vec<T> of_row = broadcast(shares[m * scales.n_bases]);
      if constexpr (Masked) of_row = xsimd::select(hidden, broadcast(T(0)), of_row);
      sum[m] = fma(p, of_row, sum[m]);
    }
  };
  // Few keys at a time, so that rounding stays that of short sums.
  constexpr int chain = 32;
  for (int first = c.begin; first < c.end; first += chain) {
    const int last = first + chain < c.end ? first + chain : c.end;
    for (int j = first; j < last; ++j) add(j);
#pragma GCC unroll 5
    for (int m = 0; m < Rungs; ++m) {
      add_to_double(sums + m * next, sum[m]);
      sum[m] = broadcast(T(0));
    }
  }
}

template <class T>
struct received_ladder_workspace {
  tile_workspace<T> tile;
  double* sums;  ///< [scale][row]

  received_ladder_workspace(const received_ladder_block& b, arena& a) : tile(b, 0, a) {
    sums = a.take<double>(b.n_scales * block_rows<T>);
  }
};

/// Received weights: queries and keys are exchanged.
template <class T>
class received_ladder_run {
 public:
  explicit received_ladder_run(const received_ladder_block& block)
      : b_(block), arena_{static_cast<char*>(block.scratch)}, ws_(block, arena_), walk_(block) {}

  void run() {
    for (int64_t i = 0; i < b_.n_scales * lanes; ++i) ws_.sums[i] = 0;
    for_panels<T>(b_.rows, [&](query_panel panel) {
      pack_queries(b_, panel, ws_.tile.rows, ws_.tile.query + panel.lane * b_.head_dim);
    });
    walk_.for_tiles([&](const key_tile& at) {
      const row_view<T> k = ws_.tile.keys(b_, at);
      for_panels<T>(b_.rows, [&](query_panel panel) { tile(panel, at, k); });
    });
    if (walk_.stopped) return;
    for (int r = 0; r < b_.rows; ++r)
      for (int64_t s = 0; s < b_.n_scales; ++s)
        b_.received[r * b_.n_scales + s] = ws_.sums[s * lanes + r];
  }

 private:
  static constexpr int w = width<T>;
  static constexpr ptrdiff_t lanes = block_rows<T>;

  void tile(query_panel panel, const key_tile& at, row_view<T> k) {
    tile_products<T> t;
    const T* const query = ws_.tile.query + panel.lane * b_.head_dim;
    T* const raw = ws_.tile.scores;
    if (!multiply_tile(b_, ws_.tile, at, k, panel, query, raw, t)) return;
    const T* const top = static_cast<const T*>(b_.top) + at.key;
    const T* const share = static_cast<const T*>(b_.share) + at.key * b_.n_scales;
    for (int n = 0; n < t.seen.vectors; ++n) {
      const product_column<T> column{raw + n * w, ws_.tile.bias + n * w, t.seen.vectors * w,
                                     t.seen.begin[n], t.seen.end[n]};
      for (int64_t b = 0; b < b_.n_bases; ++b) {
        const vec<T> base = broadcast(static_cast<T>(b_.scale[b] * log2e));
        double* const sums = ws_.sums + b * lanes + panel.lane + n * w;
        const ptrdiff_t next = b_.n_bases * lanes;
        with_rungs(rungs_of(b_, b), [&](auto rungs) ATTNSCALE_INLINE_LAMBDA {
          constexpr int m = decltype(rungs)::value;
          if (t.biased)
            receive_ladder<T, m, true>(column, base, top, share + b, b_, sums, next);
          else
            receive_ladder<T, m, false>(column, base, top, share + b, b_, sums, next);
        });
      }
    }
  }

  const received_ladder_block& b_;
  arena arena_;
  received_ladder_workspace<T> ws_;
  tile_walk walk_;
};

template <class T>
void received_ladder(const received_ladder_block& block) noexcept {
  received_ladder_run<T>(block).run();
}

}  // namespace
