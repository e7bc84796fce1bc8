// SPDX-License-Identifier: BSD-3-Clause
//
// The k largest scores of each lane, from kept scores [key][lane] without those equal to
// `masked_score`.
#pragma once

#include <stdint.h>

#include "kernels/simd/simd.hpp"
#include "kernels/tile/mask-inl.hpp"

namespace {

/// The k largest scores of a lane: those above `cut`, and the first `equals` of those equal to it.
template <class T>
struct lane_cut {
  T cut;
  int64_t equals;
};

/// Bisects between the smallest and the largest score of each lane until k are above, or no number
/// is between.
template <class T>
class cut_search {
 public:
  /// top: largest score of each lane; idle lanes are skipped.
  cut_search(const T* kept, int64_t keys, int64_t k, const double* top, const bool* idle)
      : kept_(kept), keys_(keys), k_(k) {
    T least[w];
    store(least, least_visible(kept, w, keys));
    count_above(least);
    for (int r = 0; r < w; ++r) {
      idle_[r] = idle[r];
      low_[r] = high_[r] = {least[r], above_[r]};
      // Else the k-th largest is the least.
      if (above_[r] >= k) high_[r] = {static_cast<T>(top[r]), 0};
    }
  }

  /// Bisects once in all lanes; false if all have ended.
  bool step() {
    T at[w];
    bool some = false;
    for (int r = 0; r < w; ++r) {
      at[r] = low_[r].score / 2 + high_[r].score / 2;
      const bool between = at[r] > low_[r].score && at[r] < high_[r].score && low_[r].above != k_;
      if (idle_[r] || !between) at[r] = limits<T>::infinity;
      some = some || at[r] < limits<T>::infinity;
    }
    if (!some) return false;
    count_above(at);
    for (int r = 0; r < w; ++r)
      if (at[r] < limits<T>::infinity) (above_[r] < k_ ? high_ : low_)[r] = {at[r], above_[r]};
    return true;
  }

  /// Either k are above `low`, or the k-th largest is `high` and may have equals.
  lane_cut<T> found(int r) const {
    if (low_[r].above == k_) return {low_[r].score, 0};
    return {high_[r].score, k_ - high_[r].above};
  }

 private:
  static constexpr int w = width<T>;

  struct end {
    T score;
    int64_t above;  ///< number of scores above it
  };

  /// above_ <- number of scores of each lane above `at`, counted in T as far as that is exact.
  void count_above(const T* at) {
    constexpr int64_t exact = int64_t{1} << 20;
    const vec<T> one = broadcast(T(1)), zero = broadcast(T(0)), limit = load(at);
    for (int64_t& each : above_) each = 0;
    for (int64_t begin = 0; begin < keys_; begin += exact) {
      const int64_t stop = begin + exact < keys_ ? begin + exact : keys_;
      vec<T> even = zero, odd = zero;
      const T* t = kept_ + begin * w;
      int64_t j = begin;
      for (; j + 1 < stop; j += 2, t += 2 * w) {
        even = even + xsimd::select(load(t) > limit, one, zero);
        odd = odd + xsimd::select(load(t + w) > limit, one, zero);
      }
      if (j < stop) even = even + xsimd::select(load(t) > limit, one, zero);
      T lanes[w];
      store(lanes, even + odd);
      for (int r = 0; r < w; ++r) above_[r] += static_cast<int64_t>(lanes[r]);
    }
  }

  const T* kept_;
  int64_t keys_, k_;
  bool idle_[w];
  end low_[w], high_[w];
  int64_t above_[w];
};

}  // namespace
