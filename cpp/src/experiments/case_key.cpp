// SPDX-License-Identifier: BSD-3-Clause
//
// NumPy's SeedSequence after M. E. O'Neill, "Developing a seed_seq alternative", 2015: words of
// entropy are hashed into a pool of four, whose words are hashed again for the state.
#include "experiments/case_key.hpp"

#include <array>

namespace attnscale::detail {
namespace {

/// Multiplies a word by a number that changes from word to word.
class hash {
 public:
  hash(std::uint32_t start, std::uint32_t factor) : state_(start), factor_(factor) {}
  std::uint32_t operator()(std::uint32_t word) {
    word ^= state_;
    state_ *= factor_;
    word *= state_;
    return word ^ (word >> 16);
  }

 private:
  std::uint32_t state_, factor_;
};

std::uint32_t mixed(std::uint32_t into, std::uint32_t word) {
  const std::uint32_t both = 0xca01f9ddU * into - 0x4973f715U * word;
  return both ^ (both >> 16);
}

using seed_pool = std::array<std::uint32_t, 4>;

/// Fills the pool from at least as many words as it has.
seed_pool pool_of(const std::vector<std::uint32_t>& words) {
  hash hashed(0x43b0d7e5U, 0x931e8875U);
  seed_pool pool{};
  for (std::size_t i = 0; i < pool.size(); ++i) pool[i] = hashed(words[i]);
  for (std::size_t from = 0; from < pool.size(); ++from)
    for (std::size_t to = 0; to < pool.size(); ++to)
      if (from != to) pool[to] = mixed(pool[to], hashed(pool[from]));
  for (std::size_t i = pool.size(); i < words.size(); ++i)
    for (std::uint32_t& word : pool) word = mixed(word, hashed(words[i]));
  return pool;
}

/// Appends 32-bit words, the low one first; leading zero words are left out.
void append(std::vector<std::uint32_t>& words, std::uint64_t number) {
  words.push_back(static_cast<std::uint32_t>(number));
  if (number >> 32 != 0) words.push_back(static_cast<std::uint32_t>(number >> 32));
}

}  // namespace

std::uint32_t crc32(const void* data, std::size_t size) {
  const auto* const bytes = static_cast<const unsigned char*>(data);
  std::uint32_t sum = ~0U;
  for (std::size_t i = 0; i < size; ++i) {
    sum ^= bytes[i];
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1U) != 0 ? 0xedb88320U : 0U);
  }
  return ~sum;
}

std::uint64_t case_key(std::uint64_t seed, std::string_view experiment,
                       const std::vector<std::uint64_t>& identity) {
  std::vector<std::uint32_t> words;
  append(words, seed);
  words.resize(seed_pool{}.size());  // so that an identity never looks like a longer seed
  append(words, crc32(experiment.data(), experiment.size()));
  for (const std::uint64_t number : identity) append(words, number);
  const seed_pool pool = pool_of(words);
  hash hashed(0x8b51f9ddU, 0x58f38dedU);
  const std::uint64_t low = hashed(pool[0]), high = hashed(pool[1]);
  return high << 32 | low;
}

}  // namespace attnscale::detail
