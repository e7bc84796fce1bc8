// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/performer_projection.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace attnscale {
namespace {

/// Makes the rows orthonormal: the Q of a QR decomposition whose R has a positive diagonal, so that
/// Q of a normal matrix is uniform among the rotations (Mezzadri 2007). Each projection is
/// subtracted twice, which leaves the rounding error of one.
void orthonormalize(double* rows, std::int64_t n, std::int64_t dim) {
  for (std::int64_t i = 0; i < n; ++i) {
    double* const row = rows + i * dim;
    for (int pass = 0; pass < 2; ++pass)
      for (std::int64_t j = 0; j < i; ++j) {
        const double* const other = rows + j * dim;
        double product = 0;
        for (std::int64_t c = 0; c < dim; ++c) product += row[c] * other[c];
        for (std::int64_t c = 0; c < dim; ++c) row[c] -= product * other[c];
      }
    double squares = 0;
    for (std::int64_t c = 0; c < dim; ++c) squares += row[c] * row[c];
    for (std::int64_t c = 0; c < dim; ++c) row[c] /= std::sqrt(squares);
  }
}

}  // namespace

void draw_projection(std::int64_t features, std::int64_t head_dim,
                     const performer_projection_options& options, double* rows) {
  const std::int64_t count = features * head_dim;
  const variate normal{.kind = distribution::normal};
  fill(rows, count, normal, options.from);
  if (!options.orthogonal) return;
  for (std::int64_t first = 0; first < features; first += head_dim)
    orthonormalize(rows + first * head_dim, std::min(head_dim, features - first), head_dim);
  std::vector<double> others(static_cast<std::size_t>(head_dim));
  for (std::int64_t row = 0; row < features; ++row) {
    fill(others.data(), head_dim, normal, options.from, count + row * head_dim);
    double squares = 0;
    for (const double x : others) squares += x * x;
    for (std::int64_t c = 0; c < head_dim; ++c) rows[row * head_dim + c] *= std::sqrt(squares);
  }
}

}  // namespace attnscale
