// SPDX-License-Identifier: BSD-3-Clause
//
// The two matrix products of attention, register-blocked with the queries in the lanes: no key or
// value is packed, no reduction runs across lanes.
//   scores[j][lane] = sum_c key[j][c] * query[c][lane]
//   out[c][lane]   += sum_j value[j][c] * weight[j][lane]
// Both are rows of A broadcast against panels of B. 6 rows by panel_vectors vectors give 24
// (AVX-512) or 12 (AVX2) independent chains for 2 FMA ports of latency 4, and each broadcast
// serves panel_vectors FMAs.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/simd.hpp"
#include "kernels/tile/rows-inl.hpp"

namespace {

template <int N>
struct count_t {
  static constexpr int value = N;
};

/// Calls f(count_t<N>) for a panel of N = vectors <= panel_vectors vectors.
template <class F>
ATTNSCALE_INLINE void with_vectors(int vectors, F&& f) {
  if constexpr (panel_vectors >= 4) {
    if (vectors == 4) return f(count_t<4>{});
    if (vectors == 3) return f(count_t<3>{});
  }
  if (vectors == 2) return f(count_t<2>{});
  return f(count_t<1>{});
}

/// Rows of A in a register block.
enum class block_height : int { one = 1, two = 2, four = 4, six = 6 };

/// Height of the next block for `left` remaining rows: sixes, and 4 + 4 rather than 6 + 2.
ATTNSCALE_INLINE block_height next_rows(int64_t left) {
  if (left >= 6 && left != 8) return block_height::six;
  return left >= 4 ? block_height::four : left >= 2 ? block_height::two : block_height::one;
}

/// Terms of a product: a * b, or (a - b)^2 for distances without cancellation.
struct plain_product {
  template <class V>
  static ATTNSCALE_INLINE V add(V a, V b, V sum) {
    return fma(a, b, sum);
  }
};
struct squared_difference {
  template <class V>
  static ATTNSCALE_INLINE V add(V a, V b, V sum) {
    const V difference = a - b;
    return fma(difference, difference, sum);
  }
};

/// acc[m][n] += sum over k < depth of a(m, k) * b[k][n]; a(m, k) is a[m * stride + k], or
/// a[k * stride + m] if Transposed. Rows of b are `lanes` apart (N vectors, or more where only
/// some vectors of a panel take part).
template <class T, int M, int N, bool Transposed, class Term = plain_product>
ATTNSCALE_INLINE void multiply_more(const T* a, ptrdiff_t stride, const T* b, ptrdiff_t lanes,
                                    int64_t depth, vec<T> (&acc)[M][N]) {
  constexpr int w = width<T>;
  const T* row[M];
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m) row[m] = Transposed ? a + m : a + m * stride;
  for (int64_t k = 0; k < depth; ++k, b += lanes) {
    vec<T> bk[N];
#pragma GCC unroll 12
    for (int n = 0; n < N; ++n) bk[n] = load(b + n * w);
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
      const vec<T> x = broadcast(Transposed ? a[k * stride + m] : row[m][k]);
#pragma GCC unroll 12
      for (int n = 0; n < N; ++n) acc[m][n] = Term::add(x, bk[n], acc[m][n]);
    }
  }
}

template <class T, int M, int N>
ATTNSCALE_INLINE void set_to_zero(vec<T> (&acc)[M][N]) {
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 12
    for (int n = 0; n < N; ++n) acc[m][n] = broadcast(T(0));
}

/// Product from zero: acc[m][n] = sum over k < depth of a(m, k) * b[k][n].
template <class T, int M, int N, bool Transposed, class Term = plain_product>
ATTNSCALE_INLINE void multiply(const T* a, ptrdiff_t stride, const T* b, ptrdiff_t lanes,
                               int64_t depth, vec<T> (&acc)[M][N]) {
  set_to_zero<T>(acc);
  multiply_more<T, M, N, Transposed, Term>(a, stride, b, lanes, depth, acc);
}

/// Calls block(count_t<M>, i) for register blocks of M rows that cover `rows` rows. One vector
/// alone has only 6 chains, too few to hide latency: blocks of 12.
template <int N, class F>
ATTNSCALE_INLINE void for_row_blocks(int64_t rows, F&& block) {
  int64_t i = 0;
  if constexpr (N == 1)
    for (; i + 12 <= rows; i += 12) block(count_t<12>{}, i);
  while (i < rows) {
    const block_height next = next_rows(rows - i);
    switch (next) {
      case block_height::six:
        block(count_t<6>{}, i);
        break;
      case block_height::four:
        block(count_t<4>{}, i);
        break;
      case block_height::two:
        block(count_t<2>{}, i);
        break;
      case block_height::one:
        block(count_t<1>{}, i);
    }
    i += static_cast<int>(next);
  }
}

/// Scores of a register block; high and low are running extremes per lane.
template <class T, int M, int N>
ATTNSCALE_INLINE void store_scores(const vec<T> (&acc)[M][N], ptrdiff_t lanes, T* scores, T* high,
                                   T* low) {
  constexpr int w = width<T>;
#pragma GCC unroll 12
  for (int n = 0; n < N; ++n) {
    vec<T> most = acc[0][n], least = acc[0][n];
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
      store(scores + m * lanes + n * w, acc[m][n]);
      most = max_or(acc[m][n], most);
      least = min_or(acc[m][n], least);
    }
    store(high + n * w, max_or(most, load(high + n * w)));
    store(low + n * w, min_or(least, load(low + n * w)));
  }
}

/// One register block of dot_products.
template <class T, int M, int N>
inline void dot_block(const T* key, ptrdiff_t stride, const T* query, ptrdiff_t lanes,
                      int64_t head_dim, T* scores, T* high, T* low) {
  vec<T> acc[M][N];
  multiply<T, M, N, false>(key, stride, query, lanes, head_dim, acc);
  store_scores<T, M, N>(acc, lanes, scores, high, low);
}

/// Running extremes of the vectors of a panel, per lane.
template <class T>
struct panel_extremes {
  T most[panel_vectors * width<T>], least[panel_vectors * width<T>];

  explicit panel_extremes(int vectors) {
    for (int i = 0; i < vectors * width<T>; ++i)
      most[i] = -limits<T>::infinity, least[i] = limits<T>::infinity;
  }
  void read(int vectors, vec<T>* high, vec<T>* low) const {
    for (int n = 0; n < vectors; ++n)
      high[n] = load(most + n * width<T>), low[n] = load(least + n * width<T>);
  }
};

/// Raw dot products of `keys` keys with the vectors of a panel, and their largest and smallest per
/// lane. After a NaN product, high and low of that lane may miss others; NaN stays in the scores.
/// `ahead`, if any, advances once per register block.
template <class T>
inline void dot_products(row_view<T> key, int keys, int vectors, const T* query, ptrdiff_t lanes,
                         int64_t head_dim, T* scores, vec<T>* high, vec<T>* low,
                         prefetches* ahead = nullptr) {
  panel_extremes<T> seen(vectors);
  with_vectors(vectors, [&](auto of_panel) {
    constexpr int N = decltype(of_panel)::value;
    for_row_blocks<N>(keys, [&](auto count, int64_t j) {
      if (ahead) ahead->next();
      dot_block<T, decltype(count)::value, N>(key.data + j * key.stride, key.stride, query, lanes,
                                              head_dim, scores + j * lanes, seen.most, seen.least);
    });
  });
  seen.read(vectors, high, low);
}

/// out += acc, rows `lanes` apart.
template <class T, int M, int N>
ATTNSCALE_INLINE void add_to_output(const vec<T> (&acc)[M][N], ptrdiff_t lanes, T* out) {
  constexpr int w = width<T>;
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 12
    for (int n = 0; n < N; ++n) {
      T* o = out + m * lanes + n * w;
      store(o, load(o) + acc[m][n]);
    }
}

/// out[0 ... columns) += sum.
template <class T>
ATTNSCALE_INLINE void add_columns(T* out, int64_t columns, vec<T> sum) {
  if (columns >= width<T>) return store(out, load(out) + sum);
  T rest[width<T>];
  store(rest, sum);
  for (int64_t c = 0; c < columns; ++c) out[c] += rest[c];
}

/// One register block of add_weighted_values.
template <class T, int M, int N>
inline void value_block(const T* value, ptrdiff_t stride, const T* weights, ptrdiff_t lanes,
                        int64_t keys, T* out) {
  vec<T> acc[M][N];
  multiply<T, M, N, true>(value, stride, weights, lanes, keys, acc);
  add_to_output<T, M, N>(acc, lanes, out);
}

/// out += value^T weights for the vectors of a panel. The tile's sum is formed in registers and
/// added once: a long sum is blocked by tiles (see docs/explanation/numerics.md).
template <class T>
inline void add_weighted_values(row_view<T> value, int keys, int vectors, const T* weights,
                                ptrdiff_t lanes, int64_t value_dim, T* out) {
  with_vectors(vectors, [&](auto of_panel) {
    constexpr int N = decltype(of_panel)::value;
    for_row_blocks<N>(value_dim, [&](auto count, int64_t c) {
      value_block<T, decltype(count)::value, N>(value.data + c, value.stride, weights, lanes, keys,
                                                out + c * lanes);
    });
  });
}

}  // namespace
