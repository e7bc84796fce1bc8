// SPDX-License-Identifier: BSD-3-Clause
//
// The two products of attention on pairs of bfloat16 numbers in vectors, register-blocked like
// those of product-inl.hpp. A row of keys is read from memory as it is; rows of values are
// interleaved by twos, once for all queries of the block.
//   scores[j][lane] = sum over pairs c of key[j][c] . query[c][lane]
//   out[c][lane]   += sum over pairs j of value[j][c] . weight[j][lane]
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/bfloat16.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/pairs-inl.hpp"
#include "kernels/tile/product-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

struct vector_pairs {
  /// The numbers of channels of keys and of values are multiples of these.
  static constexpr int key_channels = 2, value_channels = width<float>;
  /// Number of keys beyond a tile for which dot() may write scores.
  static constexpr int spare_keys = 0;

  /// Object whose lifetime allows the thread to multiply.
  struct session {};

  /// Size of the values of a tile as fill_values() lays them out.
  static int64_t value_numbers(int64_t channels) { return (max_tile_keys + 1) * channels; }

  /// Rows of keys that are copied if a block of them extends beyond the tile.
  static constexpr int edge_rows = 0;

  /// Scores of the keys of a strip with its vectors, and their extremes per lane.
  static void dot(const strip& s, int /*keys*/, bfloat16_rows key, uint16_t* /*edge*/,
                  const uint32_t* query, ptrdiff_t lanes, int64_t pairs, float* scores,
                  vec<float>* high, vec<float>* low, prefetches* ahead) {
    const int vectors = s.last - s.first, first = s.first * width<float>;
    panel_extremes<float> seen(vectors);
    with_vectors(vectors, [&](auto of_panel) {
      constexpr int N = decltype(of_panel)::value;
      for_row_blocks<N>(s.end - s.begin, [&](auto count, int64_t row) {
        constexpr int M = decltype(count)::value;
        if (ahead) ahead->next();
        const int64_t j = s.begin + row;
        vec<float> acc[M][N];
        set_to_zero<float>(acc);
        const uint16_t* const rows = key.data + j * key.stride;
        multiply<M, N>([&](int m, int64_t k) { return rows + m * key.stride + 2 * k; },
                       query + first, lanes, pairs, acc);
        store_scores<float, M, N>(acc, lanes, scores + j * lanes + first, seen.most, seen.least);
      });
    });
    seen.read(vectors, high, low);
  }

  /// Lays out the values of a tile; row(j) points to those of key j, or to zeros.
  template <class Row>
  static void fill_values(int keys, int64_t channels, Row&& row, uint16_t* values) {
    uint32_t* out = reinterpret_cast<uint32_t*>(values);
    for (int j = 0; j < keys; j += 2, out += channels) {
      const uint16_t* const low = row(j);
      const uint16_t* const high = row(j + 1);
      for (int64_t c = 0; c < channels; c += width<float>)
        store(out + c, interleaved_pair(low + c, high + c));
    }
  }

  /// out += values^T weights for the visible pairs of keys of a panel's vectors.
  static void add(const vector_keys& seen, const uint16_t* values, int64_t channels, float* weights,
                  float* out) {
    const uint32_t* const weight = reinterpret_cast<const uint32_t*>(weights);
    const ptrdiff_t lanes = seen.vectors * width<float>;
    strip strips[2 * panel_vectors];
    const int n_strips = cut_strips(pairs_of(seen), strips);
    for (int i = 0; i < n_strips; ++i) {
      const strip& s = strips[i];
      const int first = s.first * width<float>;
      with_vectors(s.last - s.first, [&](auto of_panel) {
        constexpr int N = decltype(of_panel)::value;
        for_row_blocks<N>(channels, [&](auto count, int64_t c) {
          constexpr int M = decltype(count)::value;
          vec<float> acc[M][N];
          set_to_zero<float>(acc);
          const uint16_t* const rows = values + 2 * (s.begin * channels + c);
          multiply<M, N>([&](int m, int64_t k) { return rows + 2 * (k * channels + m); },
                         weight + s.begin * lanes + first, lanes, s.end - s.begin, acc);
          add_to_output<float, M, N>(acc, lanes, out + c * lanes + first);
        });
      });
    }
  }

  /// out(j, c) += sum over q of weights(j, q) rows(q, c) for the keys j of a tile. Rows of weights
  /// have `width` numbers, those of rows `channels` pairs: the rows 2 q and 2 q + 1.
  static void add_rows(int keys, const uint16_t* weights, int width_of_weights, int row_pairs,
                       const uint32_t* rows, int64_t channels, int64_t columns, float* out,
                       ptrdiff_t out_stride) {
    constexpr int w = width<float>;
    for (int64_t c = 0; c < channels; c += panel_vectors * w) {
      const int64_t left = (channels - c) / w;
      with_vectors(static_cast<int>(left < panel_vectors ? left : panel_vectors), [&](auto count) {
        constexpr int N = decltype(count)::value;
        for_row_blocks<N>(keys, [&](auto height, int64_t j) {
          constexpr int M = decltype(height)::value;
          const uint16_t* const own = weights + j * width_of_weights;
          vec<float> acc[M][N];
          set_to_zero<float>(acc);
          multiply<M, N>([&](int m, int64_t k) { return own + m * width_of_weights + 2 * k; },
                         rows + c, channels, row_pairs, acc);
#pragma GCC unroll 12
          for (int m = 0; m < M; ++m)
#pragma GCC unroll 12
            for (int n = 0; n < N; ++n)
              add_columns<float>(out + (j + m) * out_stride + c + n * w, columns - c - n * w,
                                 acc[m][n]);
        });
      });
    }
  }

 private:
  /// acc[m][n] += sum over k < depth of pair(m, k) . b[k][n]; pair(m, k) is its address.
  template <int M, int N, class Pair>
  static ATTNSCALE_INLINE void multiply(Pair&& pair, const uint32_t* b, ptrdiff_t lanes,
                                        int64_t depth, vec<float> (&acc)[M][N]) {
    for (int64_t k = 0; k < depth; ++k, b += lanes) {
      vec<uint32_t> bk[N];
#pragma GCC unroll 12
      for (int n = 0; n < N; ++n) bk[n] = load(b + n * width<float>);
#pragma GCC unroll 12
      for (int m = 0; m < M; ++m) {
        const vec<uint32_t> x = broadcast_pair(pair(m, k));
#pragma GCC unroll 12
        for (int n = 0; n < N; ++n) acc[m][n] = add_products(bk[n], x, acc[m][n]);
      }
    }
  }
};

}  // namespace
