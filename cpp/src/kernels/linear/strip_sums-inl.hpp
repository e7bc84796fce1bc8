// SPDX-License-Identifier: BSD-3-Clause
//
// Contributions of a strip of rows to the sums over keys, or over queries.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/linear/decay-inl.hpp"
#include "kernels/linear/linear.hpp"
#include "kernels/linear/rows-inl.hpp"
#include "kernels/tile/rows-inl.hpp"

namespace {

using attnscale::detail::linear_sums;

/// products = products * decay + rows^T values.
template <class T>
inline void add_to_sums(row_view<T> in, row_view<T> values, int64_t rows, int64_t features,
                        int64_t columns, int64_t lanes, double fade, T* added, double* products) {
  product<T, true>(in, values, lanes, features, rows, {added, lanes});
  for (int64_t f = 0; f < features; ++f)
    for (int64_t c = 0; c < columns; ++c) {
      double& sum = products[f * columns + c];
      sum = sum * fade + static_cast<double>(added[f * lanes + c]);
    }
}

/// total += sum of the rows, which stays in `sum`.
template <class T>
inline void add_rows(row_view<T> in, int64_t rows, int64_t features, T* sum, double* total) {
  for (int64_t f = 0; f < features; ++f) sum[f] = T(0);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t f = 0; f < features; ++f) sum[f] += in.data[r * in.stride + f];
  for (int64_t f = 0; f < features; ++f) total[f] += static_cast<double>(sum[f]);
}

/// Adds the keys and values of a strip to `own`; `fades`: the decay that has read the strip, or
/// null.
template <class T>
inline void add_strip(row_view<T> key, row_view<T> value, int64_t rows, const linear_form& form,
                      const row_fades<T>* fades, linear_workspace<T>& ws, const linear_sums& own) {
  if (fades) key = fades->to_end(key, rows, form.features, ws.key, ws.columns);
  add_to_sums(key, value, rows, form.features, form.value_dim, ws.lanes, fades ? fades->end() : 1,
              ws.added, own.products);
  add_rows(key, rows, form.features, ws.running, own.total);
}

}  // namespace
