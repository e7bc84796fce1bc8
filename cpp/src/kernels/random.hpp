// SPDX-License-Identifier: BSD-3-Clause
//
// What one call of a random kernel works on. Numbers come in groups: 16 Philox blocks side by
// side, so that word w of all blocks fills 16 lanes at every level. A group holds 64 float32 or
// 32 float64 elements; element 16 s + i of a group is made of slot s of block i.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/types.hpp"

namespace attnscale::detail {

struct stop_signal;

inline constexpr int group_blocks = 16;
inline constexpr int group_words = 4 * group_blocks;

/// Elements of a group: a float32 element takes one word, a float64 element two.
template <class T>
inline constexpr int group_elements = group_words * 4 / static_cast<int>(sizeof(T));

/// What the numbers of a stream are for: separate parts of its block numbers.
enum class purpose : uint8_t { main, values, query };

struct random_source {
  random_stream from;
  purpose use = purpose::main;
};

/// A distribution with the constants that its transform needs.
struct variate_block {
  distribution kind;
  double location, scale;  ///< value = location + scale * standard value
  double low, high;        ///< of the standard value (truncated_normal); uniform: high of the value
  double below, above, inside;  ///< probability of the three parts of a truncated normal
};

/// Whole groups of one distribution into `out`, float or double.
struct fill_block {
  random_source source;
  variate_block variate;
  uint64_t first_group;
  int64_t groups;
  void* out;
};

}  // namespace attnscale::detail
