// SPDX-License-Identifier: BSD-3-Clause
//
// Gradients of linear attention. With p(i, j) the weight of key j in the output of query i, g the
// output's gradient and h(i) = g_i . output_i (0 where weights are not divided by their sum):
//   d phi(q_i) = sum over j of (g_i . v_j - h_i) p(i, j) by phi(q_i)
//   d phi(k_j) = sum over i of (g_i . v_j - h_i) p(i, j) by phi(k_j),  d v_j = sum over i of p(i,
//   j) g_i
// The first reads the sums over keys that the output reads. The others read sums over queries,
// R = sum of w_i g_i^T and sum of w_i h_i, of w_i: phi(q_i) over what its output was divided by.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/linear/linear.hpp"

namespace attnscale::detail {

/// Notes of a chunk's queries for its keys; rows are whole vectors at any level.
struct gradient_notes {
  void* weights;     ///< w_i, rows x columns, relative to the references of their strip
  void* means;       ///< h_i, rows; for `channels` rows x columns; with a decay terms that pass a
                     ///< strip
  void* references;  ///< for exponentials, strips x columns
  void* sums;        ///< with a decay: over the keys before each strip, strips x features x lanes
  int64_t* strips;   ///< number of strips, then their first rows
  int64_t columns, lanes;
};

/// Rows of a chunk. Queries read `base` and, with keys, `own` as linear_block does, and are added
/// to `later_own`, relative to their first strip. Keys read `later_base` and, with queries, their
/// notes, and use `later_own` from their last strip to their first.
struct linear_gradient_block {
  const linear_form* form;
  matrix query, key, value, grad;  ///< data of query or key may be null, with value or grad
  matrix query_out, key_out, value_out;
  double* decay_out;
  const double *query_turn, *key_turn, *decay;
  linear_sums base, own, later_base, later_own;
  gradient_notes notes;
  int64_t rows, count;
  linear_range* range;
  const stop_signal* stop;
  void* scratch;
};

}  // namespace attnscale::detail
