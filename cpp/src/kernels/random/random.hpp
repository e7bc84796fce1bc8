// SPDX-License-Identifier: BSD-3-Clause
//
// Arguments of the random kernels. Numbers come in groups: 16 Philox blocks side by side, so that
// word w of all blocks fills 16 lanes at every level. A group holds 64 float32 or 32 float64
// elements; element 16 s + i of a group is made from slot s of block i.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/types.hpp"

namespace attnscale::detail {

struct stop_signal;

inline constexpr int group_blocks = 16;
inline constexpr int group_words = 4 * group_blocks;

/// Elements per group: a float32 element takes one word, a float64 element two.
template <class T>
inline constexpr int group_elements = group_words * 4 / static_cast<int>(sizeof(T));

/// Purposes of a stream's numbers, as separate parts of its block numbers.
enum class purpose : uint8_t { main, values, query };

struct random_source {
  random_stream from;
  purpose use = purpose::main;
};

/// A distribution with the constants of its transform.
struct variate_block {
  distribution kind;
  double location, scale;  ///< value = location + scale * standard value
  double low, high;        ///< of the standard value (truncated_normal); uniform: high of the value
  double below, above, inside;  ///< probabilities of the three parts of a truncated normal
};

/// Whole groups of one distribution, written to `out`, float or double.
struct fill_block {
  random_source source;
  variate_block variate;
  uint64_t first_group;
  int64_t groups;
  void* out;
};

/// Sums of products: sample i of a group of 16 samples has its components in lane i of the elements
/// of ceil(dim / 4) groups. x is drawn for purpose::main, y for purpose::values.
struct sample_block {
  random_stream from;
  variate_block x, y;
  uint64_t first_samples;  ///< groups of samples
  int64_t samples;         ///< groups of samples
  int64_t dim;
  double* out;  ///< 16 per group
  const stop_signal* stop;
};

/// Rows of points against 16 * strips columns of a random matrix; column 16 s + i of component c is
/// element 16 c + i of the stream's part for strip s.
struct projection_block {
  random_source source;
  projection_kind kind;
  double density;
  const float* points;  ///< row stride dim
  int64_t rows, dim;
  int64_t first_column, columns;  ///< of the panel: at most panel_columns
  float factor;
  float* out;  ///< at the panel's first column; row stride out_stride
  ptrdiff_t out_stride;
  void* scratch;
  const stop_signal* stop;
};

/// Squared distances of two sets of points, contiguous float rows.
struct point_set {
  const float* data;
  int64_t dim;
};

/// Sums over pairs of ratio - 1 of their squared distances.
struct ratio_sums {
  double least, most, first, second;
};

/// Pairs (i, j), i < j, of rows i in [first_row, last_row) and one panel of points j.
struct distance_block {
  point_set before, after;
  int64_t points;
  int64_t first_row, last_row;
  int64_t panel;  ///< index of the panel
  const double* eps;
  int64_t n_eps;
  ratio_sums* sums;
  int64_t* outside;  ///< pairs with |ratio - 1| > eps, one per eps; added to
  void* scratch;
  const stop_signal* stop;
};

/// Standard variates of scores: normal; a coordinate of a uniform point on the unit sphere; or -1
/// and 1, the sphere in one dimension.
enum class score_kind : uint8_t { normal, sphere, sign };

/// Number of keys per group.
inline constexpr int keys_of_group(score_kind kind) {
  return kind == score_kind::sphere ? group_words / 2 : group_words;
}

/// Streaming sums of a row at one multiplier, in base 2: t = score * factor, and the weights are
/// 2^(t - reference). The reference is an integer, so that changing it is exact.
struct simulated_sums {
  double reference;     ///< at least the largest t, and less than 1 above it
  double weight;        ///< sum of weights
  double first;         ///< sum of weight * (t - reference)
  double squares;       ///< sum of weight^2
  double value;         ///< sum of weight * value
  double score_first;   ///< sum of weight * (score - center)
  double score_second;  ///< sum of weight * (score - center)^2
  double center;
};

/// Some keys of one row: score = offset + scale * standard variate.
struct simulated_row_block {
  random_source source;
  score_kind kind;
  uint64_t first_group;  ///< of the keys
  uint64_t value_group;  ///< of their values
  int64_t keys;
  double offset, scale;
  double power;          ///< sphere: radius^2 = 1 - 2^(-power * exponential variate)
  const float* needle;   ///< replaces the random score of the first of these keys, or null
  const float* factors;  ///< multiplier * log2(e)
  int64_t n_factors;
  simulated_sums* sums;  ///< one per factor
  float least, most;     ///< written: extremes of the random scores; +-infinity without any
  void* scratch;         ///< score_scratch bytes per factor
  const stop_signal* stop;
};

/// Number of terms of simulated_sums, summed in 16 lanes at every level.
inline constexpr int score_terms = 6;
inline constexpr size_t score_scratch = sizeof(double) * score_terms * group_blocks;

}  // namespace attnscale::detail
