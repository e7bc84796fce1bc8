// SPDX-License-Identifier: BSD-3-Clause
//
// The two matrix products of attention, register-blocked with the queries in the lanes: no key
// or value is packed, no reduction runs across lanes.
//   scores[j][lane] = sum_c key[j][c] * query[c][lane]
//   out[c][lane]   += sum_j value[j][c] * weight[j][lane]
// Both are rows of A broadcast against panels of B. 6 rows by panel_vectors vectors give 24
// (AVX-512) or 12 (AVX2) independent chains for 2 FMA ports of latency 4, and each broadcast
// serves panel_vectors FMAs.
#pragma once

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

/// Rows of A in the next register block when `left` are left: sixes, and 4 + 4 rather than 6 + 2.
ATTNSCALE_INLINE int next_rows(int64_t left) {
  if (left >= 6 && left != 8) return 6;
  return left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/// Calls f(count_t<M>) for M = next_rows(left).
template <class F>
ATTNSCALE_INLINE void with_rows(int rows, F&& f) {
  switch (rows) {
    case 6: return f(count_t<6>{});
    case 4: return f(count_t<4>{});
    case 2: return f(count_t<2>{});
    default: return f(count_t<1>{});
  }
}

/// acc[m][n] = sum over k < depth of a(m, k) * b[k][n]; a(m, k) is a[m * stride + k], or
/// a[k * stride + m] if Transposed.
template <class T, int M, int N, bool Transposed>
ATTNSCALE_INLINE void multiply(const T* a, ptrdiff_t stride, const T* b, int64_t depth,
                               vec<T> (&acc)[M][N]) {
  constexpr int w = width<T>;
  const T* row[M];
  for (int m = 0; m < M; ++m) {
    row[m] = Transposed ? a + m : a + m * stride;
    for (int n = 0; n < N; ++n) acc[m][n] = broadcast(T(0));
  }
  for (int64_t k = 0; k < depth; ++k) {
    vec<T> bk[N];
    for (int n = 0; n < N; ++n) bk[n] = load(b + (k * N + n) * w);
    for (int m = 0; m < M; ++m) {
      const vec<T> x = broadcast(Transposed ? a[k * stride + m] : row[m][k]);
      for (int n = 0; n < N; ++n) acc[m][n] = fma(x, bk[n], acc[m][n]);
    }
  }
}

/// Raw dot products of `keys` keys with one panel, and their largest and smallest a lane.
/// NaN is not seen by high and low; it stays in the scores.
template <class T, int N>
inline void dot_products(row_view<T> key, int keys, const T* query, int64_t head_dim, T* scores,
                         vec<T> (&high)[N], vec<T> (&low)[N]) {
  constexpr int w = width<T>;
  for (int n = 0; n < N; ++n) {
    high[n] = broadcast(-limits<T>::infinity);
    low[n] = broadcast(limits<T>::infinity);
  }
  for (int j = 0; j < keys;) {
    const int rows = next_rows(keys - j);
    with_rows(rows, [&](auto count) {
      constexpr int M = decltype(count)::value;
      vec<T> acc[M][N];
      multiply<T, M, N, false>(key.data + j * key.stride, key.stride, query, head_dim, acc);
      for (int m = 0; m < M; ++m)
        for (int n = 0; n < N; ++n) {
          store(scores + ((j + m) * N + n) * w, acc[m][n]);
          high[n] = max_or(acc[m][n], high[n]);
          low[n] = min_or(acc[m][n], low[n]);
        }
    });
    j += rows;
  }
}

/// out += value^T weights for one panel. The tile's sum is formed in registers and added once:
/// a long sum is blocked by tiles (see docs/explanation/numerics.md).
template <class T, int N>
inline void add_weighted_values(row_view<T> value, int keys, const T* weights, int64_t value_dim,
                                T* out) {
  constexpr int w = width<T>;
  for (int64_t c = 0; c < value_dim;) {
    const int rows = next_rows(value_dim - c);
    with_rows(rows, [&](auto count) {
      constexpr int M = decltype(count)::value;
      vec<T> acc[M][N];
      multiply<T, M, N, true>(value.data + c, value.stride, weights, keys, acc);
      for (int m = 0; m < M; ++m)
        for (int n = 0; n < N; ++n) {
          T* o = out + ((c + m) * N + n) * w;
          store(o, load(o) + acc[m][n]);
        }
    });
    c += rows;
  }
}

}  // namespace
