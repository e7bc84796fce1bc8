// SPDX-License-Identifier: BSD-3-Clause
//
// Visible keys of a row. Causal, window and key_length give one interval [first, last) per row; a
// tile inside every row's interval needs no mask. Other tiles get a bias panel [key][lane] in the
// unit of scores: 0 or the additive mask for a visible key, `masked_score` for a hidden one.
// `masked_score` is compared for equality, never added to a score.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/types.hpp"
#include "kernels/numbers.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/rows-inl.hpp"

namespace {

using attnscale::element_type;
using attnscale::mask_kind;
using attnscale::detail::hiding_number;
using attnscale::detail::matrix;
using attnscale::detail::score_block;

template <class T>
constexpr T masked_score = limits<T>::lowest;

/// Smallest of `keys` finished scores of a lane, `step` apart, without masked ones; infinity
/// without any.
template <class T>
inline vec<T> least_visible(const T* scores, ptrdiff_t step, int64_t keys) {
  const vec<T> masked = broadcast(masked_score<T>), infinity = broadcast(limits<T>::infinity);
  vec<T> least = infinity;
  for (int64_t j = 0; j < keys; ++j, scores += step) {
    const vec<T> s = load(scores);
    least = min_or(xsimd::select(s == masked, infinity, s), least);
  }
  return least;
}

/// Smallest bias of a visible key, so that log2(e) and a score cannot make it -inf.
template <class T>
constexpr T lowest_bias = limits<T>::lowest / 2;

/// A range of keys whose tiles are treated alike.
struct key_range {
  int64_t begin, end;
  bool masked;
};

/// Whether scores depend on the positions of query and key through a table.
inline bool has_distance_tables(const score_block& block) {
  return block.tables.distance_scale.data || block.tables.distance_bias.data;
}

/// Ranges of keys that any row may see: the leading ones, which all rows see, then masked,
/// unmasked, masked.
struct key_ranges {
  key_range range[4];
  int count = 0;

  explicit key_ranges(const score_block& block) {
    const int64_t leading = block.leading_keys < block.key_end ? block.leading_keys : block.key_end;
    if (block.key_begin < leading) range[count++] = {block.key_begin, leading, false};
    add_intervals(block);
  }

  /// The first key, and the number of keys up to the last.
  int64_t first() const { return count == 0 ? 0 : range[0].begin; }
  int64_t keys() const { return count == 0 ? 0 : range[count - 1].end - range[0].begin; }

 private:
  void add_intervals(const score_block& block) {
    int64_t begin = block.key_end, end = block.key_begin;
    int64_t full_begin = block.key_begin, full_end = block.key_end;
    for (int r = 0; r < block.rows; ++r) {
      const int64_t first = block.first_visible[r], last = block.last_visible[r];
      if (first < begin) begin = first;
      if (first > full_begin) full_begin = first;
      if (last > end) end = last;
      if (last < full_end) full_end = last;
    }
    if (begin < block.key_begin) begin = block.key_begin;
    if (end > block.key_end) end = block.key_end;
    if (begin >= end) return;
    if (block.mask_type != mask_kind::none || has_distance_tables(block) ||
        full_begin >= full_end) {
      range[count++] = {begin, end, true};
      return;
    }
    if (begin < full_begin) range[count++] = {begin, full_begin, true};
    range[count++] = {full_begin, full_end, false};
    if (full_end < end) range[count++] = {full_end, end, true};
  }
};

/// Booleans are read as bytes: any value but 0 makes the key visible.
template <class T>
inline T bias_of(uint8_t seen, uint8_t, T) {
  return seen ? T(0) : masked_score<T>;
}
/// Numbers at or below `hiding`, half of the lowest number of the storage type, hide the key.
template <class T, class M>
inline T bias_of(M x, M hiding, T unit) {
  const T t = static_cast<T>(x) * unit;
  return x <= hiding ? masked_score<T> : t < lowest_bias<T> ? lowest_bias<T> : t;
}

/// Elements at a stride as bias; neighbours (`step` 1) in a separate loop, which vectorises.
template <class T, class M>
inline void read_bias(const M* mask, ptrdiff_t step, int keys, M hiding, T unit, T* out) {
  if (step == 1)
    for (int j = 0; j < keys; ++j) out[j] = bias_of<T>(mask[j], hiding, unit);
  else
    for (int j = 0; j < keys; ++j) out[j] = bias_of<T>(mask[j * step], hiding, unit);
}

/// Bias of one row of the array mask over `keys` keys.
template <class T>
inline void read_mask_row(const score_block& block, int row, int64_t key, int keys, T* out) {
  const matrix& m = block.attn_mask;
  const ptrdiff_t step = m.layout.column, start = row * m.layout.row + key * step;
  const T unit = static_cast<T>(block.unit);
  if (block.mask_type == mask_kind::boolean)
    return read_bias(static_cast<const uint8_t*>(m.data) + start, step, keys, uint8_t(0), unit,
                     out);
  const double hiding = hiding_number[static_cast<int>(m.layout.type)];
  if (m.layout.type == element_type::float64)
    return read_bias(static_cast<const double*>(m.data) + start, step, keys, hiding, unit, out);
  const auto narrow = static_cast<float>(hiding);
  if (m.layout.type == element_type::float32)
    return read_bias(static_cast<const float*>(m.data) + start, step, keys, narrow, unit, out);
  for (int j = 0; j < keys; ++j)
    out[j] = bias_of<T>(read_element<float>(m.data, m.layout.type, start + j * step), narrow, unit);
}

/// Keys of a tile, [begin[n], end[n]) counted from its first, that vector n of a panel may see by
/// interval: nothing outside them is computed or read.
struct vector_keys {
  int vectors;  ///< number of vectors of the panel
  int begin[panel_vectors], end[panel_vectors];

  bool nothing() const {
    for (int n = 0; n < vectors; ++n)
      if (begin[n] < end[n]) return false;
    return true;
  }
};

template <class T>
inline vector_keys keys_of_vectors(const score_block& block, query_panel panel, int64_t key,
                                   int keys) {
  vector_keys seen;
  seen.vectors = panel.vectors;
  for (int n = 0; n < panel.vectors; ++n) {
    const int row = panel.lane + n * width<T>, past = row + width<T>;
    int64_t first = block.first_visible[row], last = block.last_visible[row];
    for (int r = row + 1; r < past && r < block.rows; ++r) {
      if (block.first_visible[r] < first) first = block.first_visible[r];
      if (block.last_visible[r] > last) last = block.last_visible[r];
    }
    const int64_t lo = first - key, hi = last - key;
    seen.begin[n] = static_cast<int>(lo < 0 ? 0 : lo > keys ? keys : lo);
    seen.end[n] = static_cast<int>(hi < 0 ? 0 : hi > keys ? keys : hi);
  }
  return seen;
}

/// The array mask of one panel, transposed into lanes (or repeated if all rows share it).
template <class T>
inline void fill_mask_panel(const score_block& block, query_panel panel, int64_t key, int keys,
                            T* rows, T* bias) {
  constexpr int w = width<T>;
  const bool shared = block.attn_mask.layout.row == 0;
  for (int n = 0; n < panel.vectors; ++n) {
    const int first = panel.lane + n * w, valid = block.rows - first;
    for (int r = 0; r < w; ++r) {
      if (r > 0 && (shared || r >= valid)) {
        // Lanes beyond the block repeat row 0; their results are not read.
        for (int j = 0; j < keys; ++j) rows[r * keys + j] = rows[j];
      } else {
        read_mask_row(block, first + r, key, keys, rows + r * keys);
      }
    }
    rows_to_lanes(row_view<T>{rows, keys}, keys, bias + n * w, panel.vectors * w);
  }
}

/// Interval of each lane of a vector, counted from the tile's first key; exact in T.
template <class T>
inline void lane_intervals(const score_block& block, int lane, int64_t key, int keys, vec<T>& lo,
                           vec<T>& hi) {
  constexpr int w = width<T>;
  T first[w], last[w];
  for (int r = 0; r < w; ++r) {
    const int row = lane + r;
    const int64_t a = row < block.rows ? block.first_visible[row] - key : 0;
    const int64_t b = row < block.rows ? block.last_visible[row] - key : 0;
    first[r] = static_cast<T>(a < 0 ? 0 : a > keys ? keys : a);
    last[r] = static_cast<T>(b < 0 ? 0 : b > keys ? keys : b);
  }
  lo = load(first);
  hi = load(last);
}

/// Fills the bias panel of a panel of queries, for the keys [key, key + keys), where `seen` is not
/// empty. False if the array mask hides all of it. `rows` is scratch of width * keys elements.
template <class T>
inline bool fill_bias(const score_block& block, query_panel panel, int64_t key, int keys,
                      const vector_keys& seen, T* rows, T* bias) {
  constexpr int w = width<T>;
  const bool array = block.mask_type != mask_kind::none;
  if (array) fill_mask_panel(block, panel, key, keys, rows, bias);
  const vec<T> masked = broadcast(masked_score<T>);
  vec_mask<T> some = differ(masked, masked);
  for (int n = 0; n < panel.vectors; ++n) {
    vec<T> lo, hi;
    lane_intervals(block, panel.lane + n * w, key, keys, lo, hi);
    for (int j = seen.begin[n]; j < seen.end[n]; ++j) {
      T* out = bias + (j * panel.vectors + n) * w;
      const vec<T> at = broadcast(static_cast<T>(j));
      const vec<T> given = array ? load(out) : broadcast(T(0));
      const vec<T> x = xsimd::select((at >= lo) & (at < hi), given, masked);
      some = some | differ(x, masked);
      store(out, x);
    }
  }
  return any<T>(some);
}

/// Keys [begin, end) of a tile that only the vectors [first, last) of a panel may see.
struct strip {
  int begin, end, first, last;
};

/// Cuts a masked tile along the diagonal, where vectors start and end one by one, into strips of
/// keys, each multiplied with the vectors that see it. At most one strip less than the vectors have
/// ends.
inline int cut_strips(const vector_keys& seen, strip (&strips)[2 * panel_vectors]) {
  int cuts[2 * panel_vectors];
  const int ends = 2 * seen.vectors;
  for (int n = 0; n < seen.vectors; ++n) {
    cuts[2 * n] = seen.begin[n];
    cuts[2 * n + 1] = seen.end[n];
  }
  for (int i = 1; i < ends; ++i)
    for (int k = i; k > 0 && cuts[k] < cuts[k - 1]; --k) {
      const int t = cuts[k];
      cuts[k] = cuts[k - 1];
      cuts[k - 1] = t;
    }
  int count = 0;
  for (int i = 0; i + 1 < ends; ++i) {
    strip s{cuts[i], cuts[i + 1], seen.vectors, 0};
    for (int n = 0; n < seen.vectors; ++n)
      if (seen.begin[n] <= s.begin && s.end <= seen.end[n]) {
        if (n < s.first) s.first = n;
        s.last = n + 1;
      }
    if (s.begin < s.end && s.first < s.last) strips[count++] = s;
  }
  return count;
}

}  // namespace
