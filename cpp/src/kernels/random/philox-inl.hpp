// SPDX-License-Identifier: BSD-3-Clause
//
// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3")
// on 64-bit lanes, one block a lane: the 32 x 32 bit product is one instruction there, and what
// it leaves in the high half of a lane is never read.
#pragma once

#include <stdint.h>

#include "kernels/random/random.hpp"
#include "kernels/simd/simd.hpp"

namespace {

using attnscale::detail::group_blocks;
using attnscale::detail::group_words;
using attnscale::detail::random_source;

/// The two keys of each of the ten rounds.
struct philox_keys {
  uint64_t round[10][2];

  explicit philox_keys(uint64_t key) {
    uint32_t low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
    for (auto& each : round) {
      each[0] = low, each[1] = high;
      low += 0x9E3779B9u, high += 0xBB67AE85u;
    }
  }
};

/// Vectors of blocks that are made side by side: ten rounds of one wait 50 cycles for each other,
/// longer than the core looks ahead. Four take half of 32 registers.
constexpr int philox_vectors = panel_vectors >= 4 ? 4 : 2;

struct philox_state {
  vec<uint64_t> x[4];
};

ATTNSCALE_INLINE void philox_rounds(const philox_keys& keys, philox_state (&s)[philox_vectors]) {
  const vec<uint64_t> m0 = broadcast(uint64_t{0xD2511F53}), m1 = broadcast(uint64_t{0xCD9E8D57});
#pragma GCC unroll 10
  for (int r = 0; r < 10; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < philox_vectors; ++v) {
      const vec<uint64_t> p0 = multiply_low_halves(s[v].x[0], m0);
      const vec<uint64_t> p1 = multiply_low_halves(s[v].x[2], m1);
      s[v].x[0] = xor_three(p1 >> 32, s[v].x[1], broadcast(keys.round[r][0]));
      s[v].x[2] = xor_three(p0 >> 32, s[v].x[3], broadcast(keys.round[r][1]));
      s[v].x[1] = p1;
      s[v].x[3] = p0;
    }
}

/// Where the words of block `block` (counted from the first one) begin.
ATTNSCALE_INLINE int word_offset(int block) {
  return block / group_blocks * group_words + block % group_blocks;
}

/// The words of `groups` groups: words[64 g + 16 w + i] is word w of block 16 (first + g) + i.
/// The purpose takes the two top bits of the block number. Writes up to the next even group.
inline void philox_words(const random_source& source, const philox_keys& keys, uint64_t first,
                         int groups, uint32_t* words) {
  constexpr int w = width<uint64_t>;
  uint64_t even[w];
  for (int i = 0; i < w; ++i) even[i] = 2 * static_cast<uint64_t>(i);
  const vec<uint64_t> stream = broadcast(source.from.stream), one = broadcast(uint64_t{1});
  const uint64_t base = (first * group_blocks) << 2 >> 2;
  const vec<uint64_t> start =
      broadcast(base | static_cast<uint64_t>(source.use) << 62) + load(even);
  for (int block = 0; block < groups * group_blocks; block += philox_vectors * w) {
    philox_state s[philox_vectors];
#pragma GCC unroll 4
    for (int v = 0; v < philox_vectors; v += 2) {
      const int at = block + v * w;
      const vec<uint64_t> number = start + broadcast(static_cast<uint64_t>(at));
      s[v] = {{number, number >> 32, stream, stream >> 32}};
      s[v + 1] = {{number + one, (number + one) >> 32, stream, stream >> 32}};
    }
    philox_rounds(keys, s);
#pragma GCC unroll 4
    for (int v = 0; v < philox_vectors; v += 2)
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k)
        store(words + word_offset(block + v * w) + k * group_blocks,
              join_low_halves(s[v].x[k], s[v + 1].x[k]));
  }
}

}  // namespace
