// SPDX-License-Identifier: BSD-3-Clause
//
// Candidates of a row: scores with their keys, in the order of the keys.
#pragma once

#include <stdint.h>

#include "kernels/simd/simd.hpp"

namespace {

/// Lists have room for whole vectors.
template <class T>
struct candidates {
  T* value;
  uint32_t* key;
  int64_t count;
};

/// Room for a list of `count` candidates.
inline int64_t list_room(int64_t count) { return (count + 15) / 16 * 16; }

template <class T>
inline bool has_nan(const candidates<T>& list) {
  int found = 0;
  for (int64_t i = 0; i < list.count; ++i) found |= list.value[i] != list.value[i];
  return found != 0;
}

/// Number of candidates above a score; exact below 2^24 per lane for float.
template <class T>
inline int64_t count_above(const candidates<T>& list, T score) {
  const vec<T> one = broadcast(T(1)), zero = broadcast(T(0)), limit = broadcast(score);
  vec<T> above = zero;
  for (int64_t i = 0; i < list.count; i += width<T>)
    above = above + xsimd::select(load(list.value + i) > limit, one, zero);
  T lanes[width<T>];
  store(lanes, above);
  int64_t count = 0;
  for (int i = 0; i < width<T>; ++i) count += static_cast<int64_t>(lanes[i]);
  return count;
}

/// Keeps the k largest of the list, of equal ones the first; returns the least score kept, or a
/// number between it and the next one. 0 < k < list.count, no NaN.
template <class T>
inline T keep_largest(candidates<T>& list, int64_t k) {
  T low = list.value[0], high = low;
  for (int64_t i = 1; i < list.count; ++i) {
    low = list.value[i] < low ? list.value[i] : low;
    high = list.value[i] > high ? list.value[i] : high;
  }
  for (int64_t i = list.count; i < list_room(list.count); ++i) list.value[i] = limits<T>::lowest;
  if (count_above(list, low) < k) high = low;  // the k-th is among the smallest
  for (;;) {
    const T middle = low / 2 + high / 2;
    if (!(middle > low && middle < high)) break;
    const int64_t above = count_above(list, middle);
    (above < k ? high : low) = middle;
    if (above == k) break;
  }
  // Either k are above `low`, or the k-th largest is `high` and may have equals.
  const bool exact = count_above(list, low) == k;
  const T cut = exact ? low : high;
  int64_t equals = exact ? 0 : k - count_above(list, high), kept = 0;
  for (int64_t i = 0; i < list.count; ++i) {
    const T value = list.value[i];
    const bool equal = value == cut && equals > 0;
    equals -= equal;
    list.value[kept] = value;
    list.key[kept] = list.key[i];
    kept += value > cut || equal;
  }
  list.count = kept;
  return cut;
}

/// Keeps the candidates with x > tau, in the list and in its x.
template <class T>
inline void keep_above(candidates<T>& list, double* x, double tau) {
  int64_t kept = 0;
  for (int64_t i = 0; i < list.count; ++i) {
    const double own = x[i];
    x[kept] = own;
    list.value[kept] = list.value[i];
    list.key[kept] = list.key[i];
    kept += own > tau;
  }
  list.count = kept;
}

}  // namespace
