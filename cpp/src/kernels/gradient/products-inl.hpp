// SPDX-License-Identifier: BSD-3-Clause
//
// Products for the gradients of keys and values: sums over queries with channels in the lanes,
// rows[j][c] += sum_q weight[j][q] * query[q][c]. Here the weights are broadcast, as keys and
// values are in tile/product-inl.hpp.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/gradient/block.hpp"
#include "kernels/gradient/pairs-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/product-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::detail::gradient_block;

/// Some queries of a block, with their rows and their weights: (j, q) at weights[j * lanes + q].
template <class T>
struct query_part {
  const T* weights;
  ptrdiff_t lanes;
  const T* rows;
  int queries;
};

/// dot_products without extremes; `ahead` prefetches a row of the next input with each row.
template <class T>
inline void plain_products(row_view<T> row, int rows, int vectors, const T* panel, ptrdiff_t lanes,
                           int64_t columns, T* out, prefetcher ahead = {}) {
  with_vectors(vectors, [&](auto of_panel) {
    constexpr int N = decltype(of_panel)::value;
    for_row_blocks<N>(rows, [&](auto count, int64_t j) {
      constexpr int M = decltype(count)::value;
      for (int m = 0; m < M; ++m) ahead.next();
      vec<T> acc[M][N];
      multiply<T, M, N, false>(row.data + j * row.stride, row.stride, panel, lanes, columns, acc);
#pragma GCC unroll 12
      for (int m = 0; m < M; ++m)
#pragma GCC unroll 12
        for (int n = 0; n < N; ++n) store(out + (j + m) * lanes + n * width<T>, acc[m][n]);
    });
  });
}

/// out(j, c) += sum over the queries of all parts, for N vectors of channels. Rows of queries are
/// `stride` apart, and padded to whole vectors.
template <class T, int N>
inline void add_query_sums(const query_part<T>* parts, int n_parts, int keys, int64_t channel,
                           int64_t columns, ptrdiff_t stride, T* out, ptrdiff_t out_stride,
                           prefetcher& ahead) {
  for_row_blocks<N>(keys, [&](auto count, int64_t j) {
    constexpr int M = decltype(count)::value;
    for (int m = 0; m < M; ++m) ahead.next();
    vec<T> acc[M][N];
    set_to_zero<T>(acc);
    for (int i = 0; i < n_parts; ++i)
      multiply_more<T, M, N, false>(parts[i].weights + j * parts[i].lanes, parts[i].lanes,
                                    parts[i].rows + channel, stride, parts[i].queries, acc);
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 12
      for (int n = 0; n < N; ++n)
        add_columns<T>(out + (j + m) * out_stride + channel + n * width<T>,
                       columns - channel - n * width<T>, acc[m][n]);
  });
}

/// Sums over queries, for all channels.
template <class T>
inline void add_over_queries(const query_part<T>* parts, int n_parts, int keys, int64_t columns,
                             ptrdiff_t stride, T* out, ptrdiff_t out_stride,
                             prefetcher ahead = {}) {
  constexpr int w = width<T>;
  for (int64_t c = 0; c < columns; c += panel_vectors * w) {
    const int64_t vectors = (columns - c + w - 1) / w;
    with_vectors(static_cast<int>(vectors < panel_vectors ? vectors : panel_vectors),
                 [&](auto count) {
                   add_query_sums<T, decltype(count)::value>(parts, n_parts, keys, c, columns,
                                                             stride, out, out_stride, ahead);
                 });
  }
}

/// Adds sums over queries to the gradients of the values, if there are any, and of the keys.
template <class T>
inline void add_to_values(const gradient_block& b, const query_part<T>* parts, int n, int64_t key,
                          int keys, ptrdiff_t stride, prefetcher ahead = {}) {
  if (b.grad_output.data)
    add_over_queries<T>(parts, n, keys, b.value_dim, stride, rows_at<T>(b.d_value, key),
                        b.d_value.row, ahead);
}
template <class T>
inline void add_to_keys(const gradient_block& b, const query_part<T>* parts, int n, int64_t key,
                        int keys, ptrdiff_t stride, prefetcher ahead = {}) {
  add_over_queries<T>(parts, n, keys, b.head_dim, stride, rows_at<T>(b.d_key, key), b.d_key.row,
                      ahead);
}

/// Products in the compute type, without bfloat16 operands.
struct widened_products {
  static constexpr bool has_pairs = false;
  static constexpr int spare_keys = 0;

  widened_products(const gradient_block&, arena&) {}
  static int64_t sum_rows(const gradient_block& b) { return b.head_dim; }
};

}  // namespace
