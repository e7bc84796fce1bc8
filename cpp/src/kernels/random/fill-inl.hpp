// SPDX-License-Identifier: BSD-3-Clause
//
// Groups of random elements of any distribution, from tiles of Philox words that stay in the L1
// cache.
#pragma once

#include <stdint.h>

#include "attnscale/types.hpp"
#include "kernels/random/philox-inl.hpp"
#include "kernels/random/quantile-inl.hpp"
#include "kernels/random/random.hpp"
#include "kernels/random/variates-inl.hpp"
#include "kernels/simd/log-inl.hpp"
#include "kernels/simd/simd.hpp"

namespace {

using attnscale::distribution;
using attnscale::detail::fill_block;
using attnscale::detail::group_blocks;
using attnscale::detail::group_elements;
using attnscale::detail::group_words;
using attnscale::detail::random_source;
using attnscale::detail::variate_block;

/// Groups of words per tile: 2 KiB.
constexpr int tile_groups = 8;
static_assert(tile_groups % 2 == 0, "philox_words writes an even number of groups");

/// out = variate(bits) for each vector of elements of `groups` groups.
template <class T, class Variate>
ATTNSCALE_INLINE void map_elements(const uint32_t* words, int groups, T* out, Variate&& variate) {
  constexpr int slots = group_elements<T> / group_blocks;
  for (int g = 0; g < groups; ++g, words += group_words)
    for (int slot = 0; slot < slots; ++slot, out += group_blocks)
      for (int lane = 0; lane < group_blocks; lane += width<T>)
        store(out + lane, variate(slot_bits(words, slot, lane, T())));
}

/// Normal numbers of a tile in pairs (Box and Muller 1958): elements i and i + 16 of a row of 32
/// share the radius sqrt(-2 log U) and the angle; pairs are counted along the rows. The loops are
/// short and sequential: the steps of a pair depend on each other, and the core overlaps pairs only
/// if the next ones are a few operations away.
template <class T>
class normal_tile {
 public:
  normal_tile(const uint32_t* words, int groups)
      : words_(words), pairs_(groups * group_elements<T> / 2) {}

  ATTNSCALE_INLINE void make(const variate_block& d, T* out) {
    make_radii();
    for (int at = 0; at < pairs_; at += width<T>) {
      const vec<T> t = eighth_turns<T>(bits_of(at, 1));
      store(cosine_ + at, t);
      store(sine_ + at, sine_of(t));
    }
    for (int at = 0; at < pairs_; at += width<T>)
      store(cosine_ + at, cosine_of(load(cosine_ + at)));
    finish(d, out);
  }

 private:
  static constexpr int most = tile_groups * group_elements<T> / 2;

  /// Bits of the pairs from `at` on: first those of the radius, then those of the angle.
  ATTNSCALE_INLINE vec<bits_t<T>> bits_of(int at, int which) const {
    constexpr int row_words = 2 * group_blocks * static_cast<int>(sizeof(T) / sizeof(uint32_t));
    return slot_bits(words_ + at / group_blocks * row_words, which, at % group_blocks, T());
  }

  ATTNSCALE_INLINE void make_radii() {
    for (int at = 0; at < pairs_; at += width<T>) {
      const log_argument<T> uniform = split_uniform<T>(bits_of(at, 0));
      store(sine_ + at, uniform.s);
      store(radius_ + at, uniform.exponent);
    }
    for (int at = 0; at < pairs_; at += width<T>) {
      const vec<T> half_square = minus_log<T>({load(sine_ + at), load(radius_ + at)});
      store(radius_ + at, xsimd::sqrt(half_square + half_square));
    }
  }

  ATTNSCALE_INLINE void finish(const variate_block& d, T* out) {
    const vec<T> mean = broadcast(static_cast<T>(d.location));
    const vec<T> deviation = broadcast(static_cast<T>(d.scale));
    for (int at = 0; at < pairs_; at += width<T>) {
      const normal_pair<T> z =
          turn(load(radius_ + at), load(sine_ + at), load(cosine_ + at), bits_of(at, 1));
      T* const row = out + at / group_blocks * 2 * group_blocks + at % group_blocks;
      store(row, mean + deviation * z.x);
      store(row + group_blocks, mean + deviation * z.y);
    }
  }

  const uint32_t* words_;
  int pairs_;
  T radius_[most], sine_[most], cosine_[most];
};

template <class T>
void normal_elements(const uint32_t* words, int groups, const variate_block& d, T* out) {
  normal_tile<T>(words, groups).make(d, out);
}

/// u is a multiple of 2^-24 (2^-53); rounding must not reach the end of the interval.
template <class T>
void uniform_elements(const uint32_t* words, int groups, const variate_block& d, T* out) {
  constexpr int digits = log_terms<T>::mantissa + 1, spare = 8 * sizeof(T) - digits;
  const vec<T> start = broadcast(static_cast<T>(d.location));
  const vec<T> extent = broadcast(static_cast<T>(d.scale)),
               last = broadcast(static_cast<T>(d.high));
  const vec<T> unit = broadcast(variate_terms<T>::unit * static_cast<T>(bits_t<T>(1) << spare));
  map_elements(words, groups, out, [=](vec<bits_t<T>> b) {
    return min_or(start + extent * (signed_to_float(b >> spare) * unit), last);
  });
}

/// The top bit is the sign, the others are the uniform number of the exponential.
template <class T>
void laplace_elements(const uint32_t* words, int groups, const variate_block& d, T* out) {
  const vec<T> center = broadcast(static_cast<T>(d.location));
  const vec<T> scale = broadcast(static_cast<T>(d.scale));
  map_elements(words, groups, out, [=](vec<bits_t<T>> b) {
    const vec<T> size = exponential<T>(b << 1, T(1)) * scale;
    return center + pick(b, size, -size);
  });
}

inline void truncated_elements(const uint32_t* words, int groups, const variate_block& d,
                               double* out) {
  const vec<double> mean = broadcast(d.location), deviation = broadcast(d.scale);
  const vec<double> unit = broadcast(0x1p-64);
  map_elements(words, groups, out, [=, &d](vec<uint64_t> b) {
    const vec<double> v = xsimd::abs(signed_to_float(b) + broadcast(0.5)) * unit;
    return mean + deviation * truncated_normal(b, v, d);
  });
}

/// Double for float elements, too: 32 bits are exact there, and a float32 probability would lose
/// the tails.
inline void truncated_elements(const uint32_t* words, int groups, const variate_block& d,
                               float* out) {
  const vec<double> mean = broadcast(d.location), deviation = broadcast(d.scale);
  const vec<double> unit = broadcast(0x1p-64);
  double wide[group_words];
  for (int g = 0; g < groups; ++g, words += group_words, out += group_words) {
    for (int i = 0; i < group_words; i += width<double>) {
      const vec<uint64_t> b = load_widened(words + i) << 32;
      const vec<double> v = xsimd::abs(signed_to_float(b) + broadcast(0x1p31)) * unit;
      store(wide + i, mean + deviation * truncated_normal(b, v, d));
    }
    for (int i = 0; i < group_words; ++i) out[i] = static_cast<float>(wide[i]);
  }
}

/// Elements of `groups` <= tile_groups groups, from their words.
template <class T>
inline void transform(const uint32_t* words, int groups, const variate_block& d, T* out) {
  switch (d.kind) {
    case distribution::uniform:
      return uniform_elements(words, groups, d, out);
    case distribution::normal:
      return normal_elements(words, groups, d, out);
    case distribution::truncated_normal:
      return truncated_elements(words, groups, d, out);
    case distribution::laplace:
      return laplace_elements(words, groups, d, out);
  }
}

/// Groups of one distribution, a tile at a time.
template <class T>
inline void fill_groups(const random_source& source, const philox_keys& keys,
                        const variate_block& variate, uint64_t first, int64_t groups, T* out) {
  uint32_t words[tile_groups * group_words];
  while (groups > 0) {
    const int tile = groups < tile_groups ? static_cast<int>(groups) : tile_groups;
    philox_words(source, keys, first, tile, words);
    transform(words, tile, variate, out);
    out += tile * group_elements<T>;
    first += static_cast<uint64_t>(tile);
    groups -= tile;
  }
}

template <class T>
void fill(const fill_block& b) noexcept {
  const philox_keys keys(b.source.from.key);
  fill_groups(b.source, keys, b.variate, b.first_group, b.groups, static_cast<T*>(b.out));
}

}  // namespace
