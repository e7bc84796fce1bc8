// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace attnscale::detail {

/// Checksum CRC-32 of IEEE 802.3, as in zlib.
std::uint32_t crc32(const void* data, std::size_t size);

/// Key of a case's random numbers under a seed: that of Python's experiments under rng = seed, the
/// first 64 bits of numpy.random.SeedSequence(seed, spawn_key=(crc32(experiment), *identity)). It
/// depends only on the case, not on other cases of the call.
std::uint64_t case_key(std::uint64_t seed, std::string_view experiment,
                       const std::vector<std::uint64_t>& identity);

}  // namespace attnscale::detail
