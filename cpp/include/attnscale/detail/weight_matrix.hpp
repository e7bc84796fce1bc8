// SPDX-License-Identifier: BSD-3-Clause
//
// Checks of vectors and of the matrices that map them.
#pragma once

#include <string>

#include "attnscale/detail/refuse.hpp"
#include "attnscale/detail/strided_array.hpp"

namespace attnscale::detail {

inline void check_vectors(const char* name, const strided_array& rows) {
  if (rows.dimension() < 2)
    refuse(std::string(name) + " must have at least 2 axes (..., n, embed_dim), got shape " +
           text_of(rows.shape()));
}

/// Checks a weight (head_dim, embed_dim), or (heads, head_dim, embed_dim) where heads are allowed.
inline void check_weight(const char* name, const strided_array& weight, const strided_array& x,
                         bool heads = false) {
  if (weight.dimension() != 2 && !(heads && weight.dimension() == 3))
    refuse(std::string(name) + " must be (head_dim, embed_dim)" +
           (heads ? " or (heads, head_dim, embed_dim)" : "") + ", got shape " +
           text_of(weight.shape()));
  if (weight.extent(1) != x.extent(1))
    refuse(std::string(name) + " must have embed_dim = " + text_of(x.extent(1)) +
           " columns, as many as x has channels, got shape " + text_of(weight.shape()));
}

/// Checks the weights of queries and keys, with or without an axis of heads.
inline void check_weights(const strided_array& x, const strided_array& q_weight,
                          const strided_array& k_weight) {
  check_weight("q_weight", q_weight, x, true);
  check_weight("k_weight", k_weight, x, true);
  if (q_weight.shape() != k_weight.shape())
    refuse("q_weight and k_weight must have the same shape, got " + text_of(q_weight.shape()) +
           " and " + text_of(k_weight.shape()));
}

}  // namespace attnscale::detail
