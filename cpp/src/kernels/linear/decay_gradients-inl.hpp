// SPDX-License-Identifier: BSD-3-Clause
//
// Gradients of log-decays. That of row i is the sum of all terms decay_mj (q_m . k_j) (g_m . v_j)
// with j < i <= m. Nothing is subtracted: a difference of sums over rows and columns would lose all
// digits where few terms pass row i.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/linear/features-inl.hpp"
#include "kernels/linear/rows-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/rows-inl.hpp"

namespace {

/// Sum over features of before . after: terms that pass a whole strip.
template <class T>
inline double passing_both(row_view<T> before, row_view<T> after, int64_t features, int64_t lanes) {
  double sum = 0;
  for (int64_t f = 0; f < features; ++f) {
    vec<T> part = broadcast(T(0));
    for (int64_t c = 0; c < lanes; c += width<T>)
      part = fma(load(before.data + f * before.stride + c), load(after.data + f * after.stride + c),
                 part);
    sum += static_cast<double>(sum_of_lanes<T>(part));
  }
  return sum;
}

/// `weights`: decayed products of queries and keys of a strip; `pairs`: g . v; key . slopes: terms
/// with a query after the strip; entering: with a key before it; passing: with both.
template <class T>
inline void gradients_of_decays(const T* weights, const T* pairs, row_view<T> key,
                                row_view<T> slopes, const T* entering, int64_t features,
                                int64_t rows, double passing, double* out) {
  double columns[linear_rows], leaving[linear_rows + 1];
  leaving[0] = 0;
  for (int64_t j = 0; j < rows; ++j) {
    columns[j] = 0;
    T sum = T(0);
    for (int64_t f = 0; f < features; ++f)
      sum += key.data[j * key.stride + f] * slopes.data[j * slopes.stride + f];
    leaving[j + 1] = leaving[j] + static_cast<double>(sum);
  }
  double entered = 0;
  for (int64_t i = rows - 1; i >= 0; --i) {
    const T *const w = weights + i * linear_rows, *const p = pairs + i * linear_rows;
    entered += static_cast<double>(entering[i]);
    double within = 0;
    for (int64_t j = 0; j < i; ++j) {
      columns[j] += static_cast<double>(w[j]) * static_cast<double>(p[j]);
      within += columns[j];
    }
    out[i] = within + entered + leaving[i] + passing;
  }
}

}  // namespace
