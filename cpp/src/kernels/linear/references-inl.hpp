// SPDX-License-Identifier: BSD-3-Clause
//
// References of exponential features: each feature's sums are relative to a key near its largest,
// and the reference rises with it. A strip of rows ends before a key that exceeds the reference.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/linear/linear.hpp"
#include "kernels/linear/rows-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/rows-inl.hpp"

namespace {

using attnscale::detail::linear_sums;

template <class T>
class feature_references {
 public:
  /// `rising`: keys, by their logarithms, are added to `own`.
  feature_references(const linear_form& form, linear_workspace<T>& ws, const linear_sums& base,
                     const linear_sums& own, bool rising)
      : form_(form), ws_(ws), base_(base), own_(own), rising_(rising) {
    for (int64_t f = 0; f < ws_.columns; ++f) {
      ws_.total[f] = ws_.running[f] = ws_.query_shift[f] = ws_.key_shift[f] = ws_.joint[f] = T(0);
      ws_.factor[f] = T(1);
    }
    for (int64_t f = 0; f < form_.features; ++f) {
      ws_.base_factor[f] = ws_.own_factor[f] = 1;
      if (rising_) set(f, own_.reference[f]);
    }
  }

  /// End of the rows from `from` on whose keys share one reference: if a later key exceeds it,
  /// earlier queries would lose digits (or all, to a NaN). Returns whether the sums were rescaled.
  bool end_of_strip(row_view<T> key, int64_t from, int64_t rows, int64_t& to) {
    const T* const first = key.data + from * key.stride;
    const bool fallen = exceeds(first) && rise(first);
    to = from + 1;
    while (to < rows && !exceeds(key.data + to * key.stride)) ++to;
    return fallen;
  }

  /// Takes the larger reference of each feature, and the factors that bring both sums to it.
  void join() {
    bool none = true;
    for (int64_t f = 0; f < form_.features; ++f) {
      const double low = -limits<double>::infinity;
      const double base = base_.products ? base_.reference[f] : low;
      const double own = rising_ ? own_.reference[f] : low;
      const double top = base > own || base != base ? base : own, at = top == low ? 0 : top;
      ws_.base_factor[f] = base == top ? 1 : __builtin_exp(base - at);
      ws_.own_factor[f] = own == top ? 1 : __builtin_exp(own - at);
      ws_.factor[f] = static_cast<T>(ws_.own_factor[f]);
      ws_.joint[f] = static_cast<T>(top);
      ws_.query_shift[f] = form_.norm == linear_norm::channels ? T(0) : static_cast<T>(top);
      none = none && top == low;
    }
    // A feature with zero weight is ignored, unless all are.
    for (int64_t f = 0; none && f < form_.features; ++f) ws_.query_shift[f] = T(0);
  }

 private:
  void set(int64_t f, double reference) {
    own_.reference[f] = reference;
    const T at = static_cast<T>(reference), limit = at + T(attnscale::detail::linear_rise);
    const bool none = at == -limits<T>::infinity;
    ws_.key_shift[f] = none ? T(0) : -at;
    // Nothing exceeds NaN; everything but -inf itself exceeds -inf.
    ws_.limit[f] = none ? limits<T>::lowest : limit == limit ? limit : limits<T>::infinity;
  }

  bool exceeds(const T* key) const {
    constexpr int w = width<T>;
    int64_t f = 0;
    for (; f + w <= form_.features; f += w)
      if (not_below(load(key + f), load(ws_.limit + f))) return true;
    for (; f < form_.features; ++f)
      if (!(key[f] < ws_.limit[f])) return true;
    return false;
  }

  /// Raises the references that a key exceeds to it, and rescales the sums so far.
  bool rise(const T* key) {
    bool fallen = false;
    for (int64_t f = 0; f < form_.features; ++f) {
      const double before = own_.reference[f], after = static_cast<double>(key[f]);
      if (key[f] < ws_.limit[f] || before != before || after <= before) continue;
      const double factor = __builtin_exp(before - after);
      own_.total[f] *= factor;
      double* const row = own_.products + f * form_.value_dim;
      for (int64_t c = 0; c < form_.value_dim; ++c) row[c] *= factor;
      set(f, after);
      fallen = true;
    }
    return fallen;
  }

  const linear_form& form_;
  linear_workspace<T>& ws_;
  const linear_sums base_, own_;
  const bool rising_;
};

}  // namespace
