// SPDX-License-Identifier: BSD-3-Clause
//
// The two products of attention on pairs of bfloat16 numbers in the tile registers of AMX; scores
// and out are laid out as in vector_pairs-inl.hpp. A register holds 16 keys, or 16 channels, by 16
// lanes. Keys are read from memory as they are, 32 channels of 16 keys at a time; the values of a
// tile are transposed.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/amx.hpp"
#include "kernels/simd/bfloat16.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/pairs-inl.hpp"
#include "kernels/tile/product-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

struct amx_pairs {
  /// The numbers of channels of keys and of values are multiples of these.
  static constexpr int key_channels = 2 * amx_rows, value_channels = amx_rows;
  /// Number of keys beyond a tile for which dot() may write scores.
  static constexpr int spare_keys = amx_rows;
  /// Rows of keys that are copied if a block of them extends beyond the tile.
  static constexpr int edge_rows = amx_rows;

  /// Object whose lifetime allows the thread to multiply.
  using session = amx_tiles;

  /// Size of the values of a tile as fill_values() lays them out.
  static int64_t value_numbers(int64_t channels) { return channels * value_row; }

  /// Scores of the keys of a strip with its vectors, and their extremes per lane. The tile has
  /// `keys` keys, and `edge` has room for edge_rows rows.
  static void dot(const strip& s, int keys, bfloat16_rows key, uint16_t* edge,
                  const uint32_t* query, ptrdiff_t lanes, int64_t pairs, float* scores,
                  vec<float>* high, vec<float>* low, prefetches* ahead) {
    const int vectors = s.last - s.first, first = s.first * width<float>;
    const ptrdiff_t key_bytes = key.stride * 2, lane_bytes = lanes * 4;
    const int steps = static_cast<int>(pairs / amx_rows);
    for (int n = 0; n < vectors; ++n)
      high[n] = broadcast(-limits<float>::infinity), low[n] = broadcast(limits<float>::infinity);
    for (int j = s.begin; j < s.end;) {
      if (ahead) ahead->next();
      float* const out = scores + j * lanes + first;
      const uint16_t* const rows = key.data + j * key.stride;
      const bool two = s.end - j > amx_rows && j + 2 * amx_rows <= keys;
      const int past = j + (two ? 2 : 1) * amx_rows, end = past < s.end ? past : s.end;
      const auto multiply = [&]<int M>(count_t<M>, const uint16_t* a, ptrdiff_t a_row) {
        for_vector_pairs(vectors, [&]<int N>(count_t<N>, int n) {
          multiply_tiles<M, N, false>(a, a_row, query + first + n * width<float>, lane_bytes, steps,
                                      out + n * width<float>, lane_bytes);
        });
      };
      if (two)
        multiply(count_t<2>{}, rows, key_bytes);
      else if (past <= keys)
        multiply(count_t<1>{}, rows, key_bytes);
      else
        multiply(count_t<1>{}, copy_edge(rows, key.stride, keys - j, 2 * pairs, edge), pairs * 4);
      find_extremes(out, lanes, end - j, vectors, high, low);
      j = past;
    }
  }

  /// Lays out the values of a tile; row(j) points to those of key j, or to zeros.
  template <class Row>
  static void fill_values(int keys, int64_t channels, Row&& row, uint16_t* values) {
    constexpr int w = width<float>;
    for (int j = 0; j < keys; j += 2 * amx_rows) {
      const uint16_t* rows[2 * amx_rows];
      for (int i = 0; i < 2 * amx_rows; ++i) rows[i] = row(j + i);
      for (int64_t c = 0; c < channels; c += w) {
        vec<float> v[w];
#pragma GCC unroll 16
        for (int i = 0; i < w; ++i)
          v[i] = from_bits(interleaved_pair(rows[2 * i] + c, rows[2 * i + 1] + c));
        transpose<float>(v);
#pragma GCC unroll 16
        for (int i = 0; i < w; ++i)
          store(reinterpret_cast<float*>(values + (c + i) * value_row + j), v[i]);
      }
    }
  }

  /// out += values^T weights for the visible pairs of keys of a panel's vectors.
  static void add(const vector_keys& seen, const uint16_t* values, int64_t channels, float* weights,
                  float* out) {
    constexpr int w = width<float>;
    const vector_keys pairs = pairs_of(seen);
    const ptrdiff_t lanes = seen.vectors * w;
    for_vector_pairs(seen.vectors, [&]<int N>(count_t<N>, int n) {
      int begin = pairs.begin[n], end = pairs.end[n];
      for (int i = n + 1; i < n + N; ++i) {
        if (pairs.begin[i] >= pairs.end[i]) continue;
        if (begin >= end || pairs.begin[i] < begin) begin = pairs.begin[i];
        if (pairs.end[i] > end) end = pairs.end[i];
      }
      if (begin >= end) return;
      begin = begin / amx_rows * amx_rows;
      const int steps = (end - begin + amx_rows - 1) / amx_rows;
      for (int i = n; i < n + N; ++i) {
        float* const own = weights + i * w;
        const bool none = pairs.begin[i] >= pairs.end[i];
        clear_rows(begin, none ? begin + steps * amx_rows : pairs.begin[i], lanes, own);
        if (!none) clear_rows(pairs.end[i], begin + steps * amx_rows, lanes, own);
      }
      const uint16_t* const value = values + 2 * begin;
      const float* const weight = weights + begin * lanes + n * w;
      float* const to = out + n * w;
      int64_t c = 0;
      for (; c + 2 * amx_rows <= channels; c += 2 * amx_rows)
        multiply_tiles<2, N, true>(value + c * value_row, value_row * 2, weight, lanes * 4, steps,
                                   to + c * lanes, lanes * 4);
      if (c < channels)
        multiply_tiles<1, N, true>(value + c * value_row, value_row * 2, weight, lanes * 4, steps,
                                   to + c * lanes, lanes * 4);
    });
  }

  /// out(j, c) += sum over q of weights(j, q) rows(q, c) for the keys j of a tile. Rows of weights
  /// have `width_of_weights` numbers, those of rows `channels` pairs: the rows 2 q and 2 q + 1.
  /// Weights of spare_keys more keys may hold anything.
  static void add_rows(int keys, const uint16_t* weights, int width_of_weights, int row_pairs,
                       const uint32_t* rows, int64_t channels, int64_t columns, float* out,
                       ptrdiff_t out_stride) {
    const int steps = (row_pairs + amx_rows - 1) / amx_rows;
    const ptrdiff_t weight_bytes = width_of_weights * 2, row_bytes = channels * 4;
    const auto block = [&]<int M, int N>(count_t<M>, count_t<N>, int j, int64_t c) {
      float* const to = out + j * out_stride + c;
      const uint16_t* const own = weights + j * width_of_weights;
      const int there = keys - j < M * amx_rows ? keys - j : M * amx_rows;
      const int64_t width_there = columns - c < N * amx_rows ? columns - c : N * amx_rows;
      if (there == M * amx_rows && width_there == N * amx_rows)
        return multiply_tiles<M, N, true>(own, weight_bytes, rows + c, row_bytes, steps, to,
                                          out_stride * 4);
      float sums[M * amx_rows][N * amx_rows];
      multiply_tiles<M, N, false>(own, weight_bytes, rows + c, row_bytes, steps, sums[0],
                                  N * amx_rows * 4);
      for (int i = 0; i < there; ++i)
        for (int64_t k = 0; k < width_there; ++k) to[i * out_stride + k] += sums[i][k];
    };
    for (int j = 0; j < keys;) {
      const bool two = keys - j > amx_rows;
      for (int64_t c = 0; c < channels; c += 2 * amx_rows) {
        const bool wide = channels - c > amx_rows;
        if (two)
          wide ? block(count_t<2>{}, count_t<2>{}, j, c) : block(count_t<2>{}, count_t<1>{}, j, c);
        else
          wide ? block(count_t<1>{}, count_t<2>{}, j, c) : block(count_t<1>{}, count_t<1>{}, j, c);
      }
      j += (two ? 2 : 1) * amx_rows;
    }
  }

 private:
  /// Distance between channels of a tile's values: one cache line more than the keys take, so that
  /// the rows of a register do not share cache sets.
  static constexpr int value_row = 256 + 32;
  static_assert(max_tile_keys <= 256);

  /// Calls f(count_t<N>, n) for the vectors n ... n + N - 1, by twos.
  template <class F>
  static ATTNSCALE_INLINE void for_vector_pairs(int vectors, F&& f) {
    int n = 0;
    for (; n + 2 <= vectors; n += 2) f(count_t<2>{}, n);
    if (n < vectors) f(count_t<1>{}, n);
  }

  /// Copies the last rows of a tile, because memory beyond them may not be read.
  static const uint16_t* copy_edge(const uint16_t* rows, ptrdiff_t stride, int count,
                                   int64_t columns, uint16_t* edge) {
    for (int r = 0; r < edge_rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        edge[r * columns + c] = r < count ? rows[r * stride + c] : 0;
    return edge;
  }

  static void clear_rows(int begin, int end, ptrdiff_t lanes, float* panel) {
    for (int i = begin; i < end; ++i) store(panel + i * lanes, broadcast(0.0f));
  }

  static ATTNSCALE_INLINE void find_extremes(const float* scores, ptrdiff_t lanes, int keys,
                                             int vectors, vec<float>* high, vec<float>* low) {
    with_vectors(vectors, [&](auto of_panel) {
      constexpr int N = decltype(of_panel)::value;
      vec<float> most[N], least[N];
      for (int n = 0; n < N; ++n) most[n] = high[n], least[n] = low[n];
      for (int j = 0; j < keys; ++j)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) {
          const vec<float> x = load(scores + j * lanes + n * width<float>);
          most[n] = max_or(x, most[n]);
          least[n] = min_or(x, least[n]);
        }
      for (int n = 0; n < N; ++n) high[n] = most[n], low[n] = least[n];
    });
  }
};

}  // namespace
