// SPDX-License-Identifier: BSD-3-Clause
//
// Decaying sums: before row i is added, earlier sums are multiplied by exp(decay_i). Log-decays are
// at most 0 and are added up in double from the beginning of a strip; no exponent is positive.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/linear/features-inl.hpp"
#include "kernels/linear/rows-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/rows-inl.hpp"

namespace {

template <class T>
class row_fades {
 public:
  row_fades(const double* decay, const fade_arrays<T>& arrays) : decay_(decay), a_(arrays) {}

  /// Reads the next strip.
  void read(int64_t row, int64_t rows) {
    begin_ += rows_ ? a_.past[rows_ - 1] : 0;
    rows_ = rows;
    double sum = 0;
    for (int64_t r = 0; r < linear_rows; ++r) a_.past[r] = r < rows ? sum += decay_[row + r] : sum;
    exponentials(0, -1, a_.since);
    exponentials(sum, 1, a_.until);
  }

  /// Decay from the first row to the start of the strip, and over the strip.
  double since_begin() const { return __builtin_exp(begin_); }
  double end() const { return __builtin_exp(a_.past[rows_ - 1]); }

  /// Decay from the start of the strip to each of its rows.
  void of_rows(T* matrix, ptrdiff_t stride, int64_t rows) const {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < stride; c += width<T>) {
        T* const at = matrix + r * stride + c;
        store(at, load(at) * broadcast(a_.since[r]));
      }
  }

  /// Decay from each row of the strip to its end.
  void of_rows_to_end(T* matrix, ptrdiff_t stride, int64_t rows) const {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < stride; c += width<T>) {
        T* const at = matrix + r * stride + c;
        store(at, load(at) * broadcast(a_.until[r]));
      }
  }

  /// Decay from each row j <= i of the strip to row i.
  void of_pairs(T* weights, ptrdiff_t stride, int64_t rows) const {
    for (int64_t i = 0; i < rows; ++i) {
      exponentials(a_.past[i], 1, a_.pairs, i + 1);
      for (int64_t j = 0; j <= i; j += width<T>) {
        T* const at = weights + i * stride + j;
        store(at, load(at) * load(a_.pairs + j));
      }
    }
  }

  /// Rows, each decayed to the end of the strip, or from its start.
  row_view<T> to_end(row_view<T> in, int64_t rows, int64_t columns, T* out,
                     ptrdiff_t stride) const {
    return times(a_.until, in, rows, columns, out, stride);
  }
  row_view<T> from_begin(row_view<T> in, int64_t rows, int64_t columns, T* out,
                         ptrdiff_t stride) const {
    return times(a_.since, in, rows, columns, out, stride);
  }

 private:
  static row_view<T> times(const T* fades, row_view<T> in, int64_t rows, int64_t columns, T* out,
                           ptrdiff_t stride) {
    for (int64_t r = 0; r < rows; ++r)
      map_row<T>(in.data + r * in.stride, columns, T(0), out + r * stride,
                 [by = broadcast(fades[r])](vec<T> x, int64_t) { return x * by; });
    return {out, stride};
  }

  /// e^(from - sign * past_j), at most 1, for `count` rows, padded to whole vectors.
  void exponentials(double from, double sign, T* out, int64_t count = linear_rows) const {
    constexpr int w = width<double>;
    const vec<double> start = broadcast(from), by = broadcast(sign), zero = broadcast(0.0);
    for (int64_t j = 0; j < count; j += width<T>)
      for (int64_t k = j; k < j + width<T>; k += w) {
        double e[w];
        store(e, natural_exp<double>(min_or(start - by * load(a_.past + k), zero)));
        for (int lane = 0; lane < w; ++lane) out[k + lane] = static_cast<T>(e[lane]);
      }
  }

  const double* decay_;
  fade_arrays<T> a_;
  double begin_ = 0;
  int64_t rows_ = 0;
};

}  // namespace
