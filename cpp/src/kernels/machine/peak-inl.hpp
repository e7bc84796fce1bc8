// SPDX-License-Identifier: BSD-3-Clause
//
// Peak rates of this machine at this level, for `make bench`.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/simd.hpp"

namespace {

/// Independent chains of multiply-adds: enough for two ports of latency 4, and few enough to stay
/// in registers at every level.
constexpr int peak_chains = 6 * panel_vectors > 12 ? 12 : 6 * panel_vectors;

template <class T>
double fma_peak(int64_t rounds, double* sink) noexcept {
  vec<T> chain[peak_chains];
  for (int i = 0; i < peak_chains; ++i) chain[i] = broadcast(static_cast<T>(i));
  const vec<T> factor = broadcast(T(0.999)), term = broadcast(T(0.001));
  for (int64_t round = 0; round < rounds; ++round)
#pragma GCC unroll 12
    for (int i = 0; i < peak_chains; ++i) chain[i] = fma(chain[i], factor, term);
  T lanes[width<T>];
  *sink = 0;
  for (int i = 0; i < peak_chains; ++i) {
    store(lanes, chain[i]);
    for (int r = 0; r < width<T>; ++r) *sink += static_cast<double>(lanes[r]);
  }
  return 2.0 * static_cast<double>(rounds) * peak_chains * width<T>;
}

/// Sums `bytes` bytes as floats: the rate at which a decoding step can read K and V.
inline double read_memory(const void* data, size_t bytes) noexcept {
  constexpr int streams = 8;
  constexpr size_t step = streams * width<float>;
  const float* p = static_cast<const float*>(data);
  const size_t count = bytes / sizeof(float);
  vec<float> sum[streams];
  for (int i = 0; i < streams; ++i) sum[i] = broadcast(0.0f);
  for (size_t k = 0; k + step <= count; k += step)
#pragma GCC unroll 8
    for (int i = 0; i < streams; ++i) sum[i] = sum[i] + load(p + k + i * width<float>);
  float lanes[width<float>];
  double total = 0;
  for (int i = 0; i < streams; ++i) {
    store(lanes, sum[i]);
    for (int r = 0; r < width<float>; ++r) total += static_cast<double>(lanes[r]);
  }
  return total;
}

}  // namespace
