// SPDX-License-Identifier: BSD-3-Clause
//
// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3")
// on 64-bit lanes, one block a lane: the 32 x 32 bit product is one instruction there, and what
// it leaves in the high half of a lane is never read.
#pragma once

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

struct philox_state {
  vec<uint64_t> x[4];
};

ATTNSCALE_INLINE void philox_rounds(const philox_keys& keys, philox_state& s) {
  const vec<uint64_t> m0 = broadcast(uint64_t{0xD2511F53}), m1 = broadcast(uint64_t{0xCD9E8D57});
#pragma GCC unroll 10
  for (int r = 0; r < 10; ++r) {
    const vec<uint64_t> p0 = multiply_low_halves(s.x[0], m0);
    const vec<uint64_t> p1 = multiply_low_halves(s.x[2], m1);
    s.x[0] = xor_three(p1 >> 32, s.x[1], broadcast(keys.round[r][0]));
    s.x[2] = xor_three(p0 >> 32, s.x[3], broadcast(keys.round[r][1]));
    s.x[1] = p1;
    s.x[3] = p0;
  }
}

/// The words of `groups` groups: words[64 g + 16 w + i] is word w of block 16 (first + g) + i.
/// The purpose takes the two top bits of the block number.
inline void philox_words(const random_source& source, const philox_keys& keys, uint64_t first,
                         int groups, uint32_t* words) {
  constexpr int w = width<uint64_t>;
  uint64_t even[w];
  for (int i = 0; i < w; ++i) even[i] = static_cast<uint64_t>(2 * i);
  const vec<uint64_t> lane = load(even);
  const vec<uint64_t> stream = broadcast(source.from.stream);
  const uint64_t use = static_cast<uint64_t>(source.use) << 62;
  for (int g = 0; g < groups; ++g, words += group_words) {
    const uint64_t block = ((first + static_cast<uint64_t>(g)) * group_blocks) << 2 >> 2 | use;
    for (int at = 0; at < group_blocks; at += 2 * w) {
      const vec<uint64_t> even_block = broadcast(block + static_cast<uint64_t>(at)) + lane;
      const vec<uint64_t> odd_block = even_block + broadcast(uint64_t{1});
      philox_state a{{even_block, even_block >> 32, stream, stream >> 32}};
      philox_state b{{odd_block, odd_block >> 32, stream, stream >> 32}};
      philox_rounds(keys, a);
      philox_rounds(keys, b);
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k)
        store(words + k * group_blocks + at, join_low_halves(a.x[k], b.x[k]));
    }
  }
}

}  // namespace
