// SPDX-License-Identifier: BSD-3-Clause
//
// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3") on
// 64-bit lanes, one block per lane: the 32 x 32 bit product is one instruction there; the high half
// of a lane is never read.
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

/// Vectors of blocks computed side by side: ten rounds have a latency of 50 cycles, more than the
/// core looks ahead. Four take half of 32 registers.
constexpr int philox_vectors = panel_vectors >= 4 ? 4 : 2;

struct philox_state {
  vec<uint64_t> x[4];
};

constexpr uint64_t philox_multipliers[2] = {0xD2511F53, 0xCD9E8D57};

/// Rounds from `first` on. The key is combined with the operand that is ready first.
template <int first>
ATTNSCALE_INLINE void philox_rounds(const philox_keys& keys, philox_state (&s)[philox_vectors]) {
  const vec<uint64_t> m0 = broadcast(philox_multipliers[0]), m1 = broadcast(philox_multipliers[1]);
#pragma GCC unroll 10
  for (int r = first; r < 10; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < philox_vectors; ++v) {
      const vec<uint64_t> p0 = multiply_low_halves(s[v].x[0], m0);
      const vec<uint64_t> p1 = multiply_low_halves(s[v].x[2], m1);
      s[v].x[0] = xor_three(s[v].x[1], broadcast(keys.round[r][0]), p1 >> 32);
      s[v].x[2] = xor_three(s[v].x[3], broadcast(keys.round[r][1]), p0 >> 32);
      s[v].x[1] = p1;
      s[v].x[3] = p0;
    }
}

/// State after three rounds of the counter parts that all blocks of a call share: the stream, and
/// the high half of the block number. It saves an eighth of the rounds' operations.
class philox_start {
 public:
  philox_start(const philox_keys& keys, uint64_t high, uint64_t stream) {
    const auto [m0, m1] = philox_multipliers;
    const uint64_t p1 = m1 * static_cast<uint32_t>(stream);
    const uint64_t p0 = m0 * static_cast<uint32_t>(p1 >> 32 ^ high ^ keys.round[0][0]);
    c_[0] = stream >> 32 ^ keys.round[0][1];
    c_[1] = p1 ^ keys.round[1][0];
    c_[2] = p0 >> 32 ^ keys.round[1][1];
    c_[3] = p0 ^ keys.round[2][1];
    key_ = keys.round[2][0];
  }

  /// State before round 3 of the blocks with these numbers.
  ATTNSCALE_INLINE philox_state after_three_rounds(vec<uint64_t> number) const {
    const vec<uint64_t> m0 = broadcast(philox_multipliers[0]),
                        m1 = broadcast(philox_multipliers[1]);
    const vec<uint64_t> first = multiply_low_halves(number, m0);
    const vec<uint64_t> second = multiply_low_halves((first >> 32) ^ broadcast(c_[0]), m1);
    const vec<uint64_t> p0 = multiply_low_halves((second >> 32) ^ broadcast(c_[1]), m0);
    const vec<uint64_t> p1 = multiply_low_halves(first ^ broadcast(c_[2]), m1);
    return {{xor_three(second, broadcast(key_), p1 >> 32), p1, (p0 >> 32) ^ broadcast(c_[3]), p0}};
  }

 private:
  uint64_t c_[4], key_;
};

/// Offset of the words of block `block`, counted from the first one.
ATTNSCALE_INLINE int word_offset(int block) {
  return block / group_blocks * group_words + block % group_blocks;
}

/// Words of the blocks numbered `start` + at, at = 0 ... : `begin` makes the state of a vector of
/// block numbers, from which rounds `first` and later continue.
template <int first, class Begin>
ATTNSCALE_INLINE void write_words(const philox_keys& keys, uint64_t start, int blocks,
                                  uint32_t* words, Begin&& begin) {
  constexpr int w = width<uint64_t>;
  uint64_t even[w];
  for (int i = 0; i < w; ++i) even[i] = 2 * static_cast<uint64_t>(i);
  const vec<uint64_t> numbers = broadcast(start) + load(even), one = broadcast(uint64_t{1});
  for (int block = 0; block < blocks; block += philox_vectors * w) {
    philox_state s[philox_vectors];
#pragma GCC unroll 4
    for (int v = 0; v < philox_vectors; v += 2) {
      const int at = block + v * w;
      const vec<uint64_t> number = numbers + broadcast(static_cast<uint64_t>(at));
      s[v] = begin(number);
      s[v + 1] = begin(number + one);
    }
    philox_rounds<first>(keys, s);
#pragma GCC unroll 4
    for (int v = 0; v < philox_vectors; v += 2)
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k)
        store(words + word_offset(block + v * w) + k * group_blocks,
              join_low_halves(s[v].x[k], s[v + 1].x[k]));
  }
}

/// Words of `groups` groups: words[64 g + 16 w + i] is word w of block 16 (first + g) + i. The
/// purpose takes the two top bits of the block number. Writes up to the next even group.
inline void philox_words(const random_source& source, const philox_keys& keys, uint64_t first,
                         int groups, uint32_t* words) {
  const uint64_t start = (first * group_blocks) << 2 >> 2 | static_cast<uint64_t>(source.use) << 62;
  const int blocks = groups * group_blocks;
  const uint64_t high = start >> 32, last = start + static_cast<uint64_t>(blocks - 1);
  if (last >> 32 == high) {
    const philox_start common(keys, high, source.from.stream);
    return write_words<3>(keys, start, blocks, words,
                          [&](vec<uint64_t> number) ATTNSCALE_INLINE_LAMBDA {
                            return common.after_three_rounds(number);
                          });
  }
  const vec<uint64_t> stream = broadcast(source.from.stream);
  write_words<0>(keys, start, blocks, words, [&](vec<uint64_t> number) ATTNSCALE_INLINE_LAMBDA {
    return philox_state{{number, number >> 32, stream, stream >> 32}};
  });
}

}  // namespace
