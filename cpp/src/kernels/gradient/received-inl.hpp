// SPDX-License-Identifier: BSD-3-Clause
//
// Weights that keys of a tile receive from the queries of a panel: their sum and their largest.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/simd.hpp"
#include "kernels/tile/block.hpp"
#include "kernels/tile/mask-inl.hpp"
#include "kernels/tile/rows-inl.hpp"

namespace {

using attnscale::received_weights;

/// Adds the sum and the largest of some non-negative weights to a key's numbers. A NaN among them
/// shows in both.
inline void receive(const received_weights& to, int64_t key, double sum, double largest) {
  if (to.sum) to.sum[key] += sum;
  if (!to.largest) return;
  double& most = to.largest[key];
  if (largest > most) most = largest;
  if (!(sum == sum)) most = sum;
}

/// Adds the weights of a panel over the keys of a tile, whose first key is `key`. As many keys as a
/// vector has lanes are transposed together into the lanes.
template <class T>
inline void add_received(const vector_keys& seen, const T* weights, const received_weights& to,
                         int64_t key) {
  constexpr int w = width<T>;
  const ptrdiff_t step = seen.vectors * w;
  for (int n = 0; n < seen.vectors; ++n)
    for (int j = seen.begin[n]; j < seen.end[n]; j += w) {
      const int keys = seen.end[n] - j < w ? seen.end[n] - j : w;
      vec<T> v[w];
      for (int i = 0; i < w; ++i)
        v[i] = i < keys ? load(weights + (j + i) * step + n * w) : broadcast(T(0));
      transpose<T>(v);
      vec<T> sum = v[0], most = v[0];
      for (int i = 1; i < w; ++i) sum = sum + v[i], most = max_or(v[i], most);
      T sums[w], largest[w];
      store(sums, sum);
      store(largest, most);
      for (int i = 0; i < keys; ++i)
        receive(to, key + j + i, static_cast<double>(sums[i]), static_cast<double>(largest[i]));
    }
}

}  // namespace
