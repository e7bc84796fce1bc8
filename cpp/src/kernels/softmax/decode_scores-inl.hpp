// SPDX-License-Identifier: BSD-3-Clause
//
// Scores of a few queries (decoding), with the channels in the lanes: keys are read once, in order,
// and prefetched.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/types.hpp"
#include "kernels/numbers.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/softmax/online-inl.hpp"
#include "kernels/softmax/stored_rows-inl.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/distance-inl.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

using attnscale::mask_kind;
using attnscale::detail::attend_block;
using attnscale::detail::decode_rows;
using attnscale::detail::score_block;

/// Keys per tile: it stays in L1 (measured: 32 beats 64 and 128 by 10 and 20 %).
constexpr int decode_keys = 32;

/// Lane i of the result: sum of the lanes of v[i]. Each round folds vectors i and i + half into one
/// that holds half of each.
template <class T>
ATTNSCALE_INLINE vec<T> sum_across(vec<T> (&v)[width<T>]) {
#pragma GCC unroll 4
  for (int half = width<T> / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i)
      v[i] = interleave_low(v[i], v[i + half]) + interleave_high(v[i], v[i + half]);
  return v[0];
}

/// Products of one key's channels, as whole vectors, with one sum per lane.
template <class Elements, class T>
ATTNSCALE_INLINE vec<T> dot_lanes(const typename Elements::element* key, const T* query,
                                  int64_t head_dim) {
  constexpr int w = width<T>;
  vec<T> even = broadcast(T(0)), odd = even;
  int64_t c = 0;
  for (; c + 2 * w <= head_dim; c += 2 * w) {
    even = fma(Elements::read(key + c), load(query + c), even);
    odd = fma(Elements::read(key + c + w), load(query + c + w), odd);
  }
  if (c + w <= head_dim) even = fma(Elements::read(key + c), load(query + c), even);
  return even + odd;
}

/// scores[j] = query . key[j] for up to `width` keys, with the channels in the lanes. All sums are
/// taken in the same order: equal keys have equal scores at any position, even where rounding
/// decides the weights.
template <class Elements, bool All, class T>
ATTNSCALE_INLINE void dot_rows(row_view<typename Elements::element> key, int keys, const T* query,
                               int64_t head_dim, T* scores) {
  constexpr int w = width<T>;
  vec<T> acc[w];
  const auto* k = key.data;
#pragma GCC unroll 16
  for (int i = 0; i < w; ++i) {
    acc[i] = broadcast(T(0));
    if (!All && i >= keys) continue;
    acc[i] = dot_lanes<Elements>(k, query, head_dim);
    k += key.stride;
    // One moving pointer. Otherwise the compiler makes one for each key, again for every tile
    // (measured, keys in memory: 16 % more time for a row's entropy).
    asm("" : "+r"(k));
  }
  store(scores, head_dim < w ? broadcast(T(0)) : sum_across<T>(acc));
  for (int64_t c = head_dim / w * w; c < head_dim; ++c)
    for (int i = 0; i < (All ? w : keys); ++i)
      scores[i] += query[c] * Elements::value(key.data[i * key.stride + c]);
}

/// Prefetch distance in rows for rows of `elements`: one page of memory, so that prefetched keys
/// and values leave most of L1 to the current ones (measured on Zen 5: half of it or twice as much
/// costs 3 to 10 %). 0 where prefetches do not pay.
template <class E>
ptrdiff_t page_ahead(const score_block& block, ptrdiff_t stride, int64_t elements) {
  if (!block.prefetches) return 0;
  const int64_t rows = 4096 / (elements * static_cast<int64_t>(sizeof(E)));
  return (rows > 1 ? rows : 1) * stride;
}

/// Prefetches `count` elements at row + ahead line by line, while others are read: a burst would
/// stall the loads in progress. Nothing if ahead is 0.
template <int count, class E>
ATTNSCALE_INLINE void ask_for(const E* row, ptrdiff_t ahead) {
  if (ahead == 0) return;
  const E* const at = row + ahead;
  constexpr int line = 64 / static_cast<int>(sizeof(E));
#pragma GCC unroll 1
  for (int c = 0; c < count; c += line) __builtin_prefetch(at + c, 0, 3);
}

/// dot_rows of a full tile in memory; beside(the key's remainder by 2) follows each key. At most 4
/// keys are read by one sequence of instructions: a CPU prefetcher follows one instruction, and one
/// that reads every sixteenth key is in another page each time (measured on Zen 5: 20 % more time).
template <class Elements, class T, class Beside>
ATTNSCALE_INLINE void dot_tile_beside(const score_block& block,
                                      row_view<typename Elements::element> key, const T* query,
                                      T* scores, Beside&& beside) {
  constexpr int w = width<T>, together = w < 4 ? w : 4;
  const int64_t head_dim = block.head_dim;
  const ptrdiff_t ahead = page_ahead<typename Elements::element>(block, key.stride, head_dim);
  const auto* k = key.data;
  for (int j = 0; j < decode_keys; j += w) {
    vec<T> sum[w];
    for (int i = 0; i < w; i += together)
#pragma GCC unroll 4
      for (int n = 0; n < together; ++n) {
        for (int64_t c = 0; c < head_dim; c += 4 * w) ask_for<4 * w>(k + c, ahead);
        sum[i + n] = dot_lanes<Elements>(k, query, head_dim);
        beside(n % 2);
        k += key.stride;
        asm("" : "+r"(k));
      }
    store(scores + j, head_dim < w ? broadcast(T(0)) : sum_across<T>(sum));
  }
  for (int64_t c = head_dim / w * w; c < head_dim; ++c)
    for (int j = 0; j < decode_keys; ++j)
      scores[j] += query[c] * Elements::value(key.data[j * key.stride + c]);
}

template <class T>
struct decode_score_workspace {
  T *query, *scores, *bias, *key_copy, *value_copy;

  decode_score_workspace(const attend_block& b, arena& a) {
    query = a.take<T>(decode_rows * b.head_dim);
    scores = a.take<T>(decode_keys);
    bias = a.take<T>(decode_keys);
    key_copy = a.take<T>(is_direct<T>(b.key.layout) ? 0 : decode_keys * b.head_dim);
    value_copy = a.take<T>(is_direct<T>(b.value.layout) ? 0 : decode_keys * b.value_dim);
  }
};

template <class T>
class decode_scores {
 public:
  /// Scores of a block with at most decode_rows rows.
  decode_scores(const attend_block& block, const decode_score_workspace<T>& workspace)
      : b_(block), ws_(workspace) {
    for (int r = 0; r < b_.rows; ++r) {
      scale_[r] = static_cast<T>(b_.scale[r * b_.scale_row] * b_.unit);
      read_row(b_.query, r, b_.head_dim, ws_.query + r * b_.head_dim);
    }
  }

  /// Writes finished scores of one row over a tile into the workspace, and their largest per lane;
  /// false if the row sees none of its keys. For a masked tile the bias is kept, too.
  template <class Rows>
  bool score(int r, const key_tile& tile, Rows k, vec<T>& high) {
    if (tile.masked && !fill_row_bias(r, tile.key, tile.keys)) return false;
    dot_tile(k, tile.keys, r);
    high = finish_row(r, tile);
    return true;
  }

  /// Scores of a one-row block and a full unmasked tile, whose keys are read in place.
  template <class Elements, class Beside>
  ATTNSCALE_INLINE vec<T> score_beside(const key_tile& tile, row_view<typename Elements::element> k,
                                       Beside&& beside) {
    dot_tile_beside<Elements>(b_, k, ws_.query, ws_.scores, beside);
    return finish_row(0, tile);
  }

 private:
  static constexpr int w = width<T>;

  /// Bias of one row over the tile; false if it masks every key.
  bool fill_row_bias(int r, int64_t key, int keys) {
    if (b_.mask_type != mask_kind::none) read_mask_row(b_, r, key, keys, ws_.bias);
    bool seen = false;
    for (int j = 0; j < keys; ++j) {
      const bool inside = key + j >= b_.first_visible[r] && key + j < b_.last_visible[r];
      if (!inside)
        ws_.bias[j] = masked_score<T>;
      else if (b_.mask_type == mask_kind::none)
        ws_.bias[j] = T(0);
      seen = seen || ws_.bias[j] != masked_score<T>;
    }
    return seen;
  }

  void dot_tile(row_view<T> k, int keys, int r) { dot_elements<as_stored<T>>(k, keys, r); }
  ATTNSCALE_INLINE void dot_tile(const stored_rows& rows, int keys, int r) {
    with_elements<T>(rows,
                     [&](auto elements, auto k) { dot_elements<decltype(elements)>(k, keys, r); });
  }

  template <class Elements>
  void dot_elements(row_view<typename Elements::element> k, int keys, int r) {
    const T* query = ws_.query + r * b_.head_dim;
    if (r == 0 && keys == decode_keys && is_read_in_place<T>(b_.key, b_.rows))
      return dot_tile_beside<Elements>(b_, k, query, ws_.scores, [](int) {});
    int j = 0;
    for (; j + w <= keys; j += w)
      dot_rows<Elements, true>({k.data + j * k.stride, k.stride}, w, query, b_.head_dim,
                               ws_.scores + j);
    if (j < keys)
      dot_rows<Elements, false>({k.data + j * k.stride, k.stride}, keys - j, query, b_.head_dim,
                                ws_.scores + j);
  }

  /// scores <- finished scores, padded with `masked_score` to a full vector; returns the largest
  /// per lane.
  vec<T> finish_row(int r, const key_tile& tile) {
    const int keys = tile.keys;
    if (has_distance_tables(b_))
      apply_distance_tables_to_row(b_, r, tile.key, keys, ws_.scores, ws_.bias);
    const score_rule<T> rule(broadcast(scale_[r]), b_.form, static_cast<T>(b_.unit));
    vec<T> best = broadcast(masked_score<T>);
    for (int j = 0; j < keys; j += w) {
      const vec<T> bias = tile.masked ? load(ws_.bias + j) : broadcast(T(0));
      store(ws_.scores + j, rule(load(ws_.scores + j), bias));
      for (int i = keys; i < j + w; ++i) ws_.scores[i] = masked_score<T>;
      best = max_or(load(ws_.scores + j), best);
    }
    return best;
  }

  const attend_block& b_;
  const decode_score_workspace<T>& ws_;
  T scale_[decode_rows];
};

}  // namespace
