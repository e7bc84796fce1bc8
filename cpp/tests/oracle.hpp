// SPDX-License-Identifier: BSD-3-Clause
//
// Attention with the whole matrix of scores, in double, as xtensor expressions: the reference for
// the kernels. One head: query (n_queries, head_dim), key (n_keys, head_dim). Compiled once, in
// oracle.cpp, because these expressions take most of the compile time.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "attnscale/detail/xtensor_compat.hpp"
#if __has_include(<xtensor/core/xmath.hpp>)
#include <xtensor/core/xmath.hpp>
#include <xtensor/generators/xbuilder.hpp>
#include <xtensor/misc/xsort.hpp>
#else
#include <xtensor/xbuilder.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xsort.hpp>
#endif

namespace oracle {

using matrix = xt::xtensor<double, 2>;
using column = xt::xtensor<double, 1>;
using bool_matrix = xt::xtensor<bool, 2>;

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// Terms of a score besides q . k, for every (query, key).
struct setting {
  column scale;         // (n_queries)
  bool_matrix visible;  // (n_queries, n_keys)
  matrix bias;          // (n_queries, n_keys)
  double softcap = 0;   // 0: no soft-cap

  setting(std::size_t n_queries, std::size_t n_keys, double one_scale);
};

/// Statistics of each row, and the scales of their errors.
struct expected {
  matrix output, absolute_output;  // sum p v, sum p |v|
  column lse, entropy, max_score, mean_score, score_variance, concentration, max_weight;
  column renyi2, min_score;
  xt::xtensor<std::int64_t, 1> n_visible, argmax;
  column magnitude;  // largest |scale| sum |q| |k| + |bias| of a visible key
  column spread;     // sum p (s - max)^2
  matrix raw;        // q . k
  matrix weights;    // p
};

/// a b^T.
matrix product_transposed(const matrix& a, const matrix& b);
/// a b.
matrix product(const matrix& a, const matrix& b);

inline auto as_column(const column& x) { return xt::view(x, xt::all(), xt::newaxis()); }

/// Largest entry of each row; `empty` for a row without entries, or without any above -inf.
column row_max(const matrix& x, double empty);

matrix scores(const matrix& raw, const setting& s);

/// Softmax of each row over its visible keys; rows without keys are zero.
expected softmax(const matrix& raw, const setting& s);

expected attention(const matrix& query, const matrix& key, const matrix& value, const setting& s);

}  // namespace oracle
