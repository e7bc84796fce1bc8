// SPDX-License-Identifier: BSD-3-Clause
//
// Which keys a row may see. Causal, window and key_length are one interval [first, last) a row;
// a tile that lies in every row's interval needs no mask at all. Elsewhere a tile gets a bias
// panel [key][lane] in base 2: 0 or the additive mask where the key is visible, `hidden` where
// it is not. `hidden` is compared for equality, never added to a score.
#pragma once

namespace {

using attnscale::mask_kind;
using attnscale::detail::max_block_rows;
using attnscale::detail::score_block;

template <class T>
constexpr T hidden = limits<T>::lowest;

constexpr double log2e = 1.4426950408889634074;

/// A run of keys that every tile in it treats alike.
struct key_range {
  int64_t begin, end;
  bool masked;
};

/// Cuts the keys that any row may see into masked, unmasked, masked; returns how many ranges.
inline int visible_ranges(const score_block& block, key_range (&ranges)[3]) {
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
  if (begin >= end) return 0;
  if (block.mask_type != mask_kind::none || full_begin >= full_end) {
    ranges[0] = {begin, end, true};
    return 1;
  }
  int count = 0;
  if (begin < full_begin) ranges[count++] = {begin, full_begin, true};
  ranges[count++] = {full_begin, full_end, false};
  if (full_end < end) ranges[count++] = {full_end, end, true};
  return count;
}

/// One row of the array mask over `keys` keys as bias.
template <class T>
inline void read_mask_row(const score_block& block, int row, int64_t key, int keys, T* out) {
  const matrix& m = block.mask;
  const ptrdiff_t start = row * m.layout.row + key * m.layout.column;
  if (block.mask_type == mask_kind::boolean) {
    const uint8_t* seen = static_cast<const uint8_t*>(m.data) + start;
    for (int j = 0; j < keys; ++j) out[j] = seen[j * m.layout.column] ? T(0) : hidden<T>;
    return;
  }
  for (int j = 0; j < keys; ++j) {
    const T x = read_element<T>(m.data, m.layout.type, start + j * m.layout.column);
    out[j] = x == -limits<T>::infinity ? hidden<T> : x * T(log2e);
  }
}

/// What a bias panel leaves of a tile.
enum class tile_sight { nothing, some };

/// The array mask of one panel, transposed into lanes (or repeated if all rows share it).
template <class T>
inline void fill_mask_panel(const score_block& block, int lane, int vectors, int64_t key, int keys,
                            T* rows, T* bias) {
  constexpr int w = width<T>;
  const ptrdiff_t lanes = vectors * w;
  const bool shared = block.mask.layout.row == 0;
  for (int n = 0; n < vectors; ++n) {
    const int valid = block.rows - (lane + n * w);
    for (int r = 0; r < w; ++r) {
      if (r > 0 && (shared || r >= valid)) {
        // Lanes beyond the block repeat row 0; nothing reads what they compute.
        for (int j = 0; j < keys; ++j) rows[r * keys + j] = rows[j];
      } else {
        read_mask_row(block, lane + n * w + r, key, keys, rows + r * keys);
      }
    }
    rows_to_lanes(row_view<T>{rows, keys}, keys, bias + n * w, lanes);
  }
}

/// Fills the bias panel for the lanes [lane, lane + vectors * width) and the keys
/// [key, key + keys). `rows` is scratch of width * keys elements.
template <class T>
inline tile_sight fill_bias(const score_block& block, int lane, int vectors, int64_t key, int keys,
                            T* rows, T* bias) {
  constexpr int w = width<T>;
  const bool array = block.mask_type != mask_kind::none;
  if (array) fill_mask_panel(block, lane, vectors, key, keys, rows, bias);
  vec_mask<T> seen = broadcast(T(0)) != broadcast(T(0));
  for (int n = 0; n < vectors; ++n) {
    T first[w], last[w];  // relative to the tile, exact in T
    for (int r = 0; r < w; ++r) {
      const int row = lane + n * w + r;
      const int64_t lo = row < block.rows ? block.first_visible[row] - key : 0;
      const int64_t hi = row < block.rows ? block.last_visible[row] - key : 0;
      first[r] = static_cast<T>(lo < 0 ? 0 : lo > keys ? keys : lo);
      last[r] = static_cast<T>(hi < 0 ? 0 : hi > keys ? keys : hi);
    }
    const vec<T> lo = load(first), hi = load(last);
    for (int j = 0; j < keys; ++j) {
      T* out = bias + (j * vectors + n) * w;
      const vec<T> at = broadcast(static_cast<T>(j));
      const vec<T> given = array ? load(out) : broadcast(T(0));
      const vec<T> x = xsimd::select((at >= lo) & (at < hi), given, broadcast(hidden<T>));
      seen = seen | (x != broadcast(hidden<T>));
      store(out, x);
    }
  }
  return any<T>(seen) ? tile_sight::some : tile_sight::nothing;
}

}  // namespace
