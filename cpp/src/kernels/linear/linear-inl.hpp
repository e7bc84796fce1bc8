// SPDX-License-Identifier: BSD-3-Clause
//
// Linear attention in blocks of rows: between blocks by the running sums, within a block by the
// masked product of queries and keys. A block costs 4 * features * value_dim operations a row for
// the sums and, with half of its triangle skipped, about rows * (features + value_dim) within.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/linear/features-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/product-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"
#include "linear.hpp"

namespace {

using attnscale::detail::feature_map;
using attnscale::detail::linear_block;

/// Rows of a block: the fewest that fill the products' registers at every level.
constexpr int linear_rows = 64;

/// out(i, lane) (+)= sum over k < depth(i) of a(i, k) * b(k, lane) for the first `lanes` lanes.
/// depth(i) is asked for the end of a register block's rows.
template <class T, bool Transposed, bool Add, class Depth>
inline void product(row_view<T> a, row_view<T> b, int64_t lanes, int64_t rows, Depth&& depth,
                    row_view<T> out_rows) {
  T* const out = const_cast<T*>(out_rows.data);
  for (int64_t lane = 0; lane < lanes; lane += panel_vectors * width<T>) {
    const int64_t left = (lanes - lane) / width<T>;
    with_vectors(left < panel_vectors ? static_cast<int>(left) : panel_vectors, [&](auto vectors) {
      constexpr int n = decltype(vectors)::value;
      for_row_blocks<n>(rows, [&](auto count, int64_t i) {
        constexpr int m = decltype(count)::value;
        vec<T> acc[m][n];
        multiply<T, m, n, Transposed>(a.data + (Transposed ? i : i * a.stride), a.stride,
                                      b.data + lane, b.stride, depth(i + m), acc);
        for (int r = 0; r < m; ++r)
          for (int c = 0; c < n; ++c) {
            T* const o = out + (i + r) * out_rows.stride + lane + c * width<T>;
            store(o, Add ? load(o) + acc[r][c] : acc[r][c]);
          }
      });
    });
  }
}

template <class T>
struct linear_workspace {
  int64_t lanes;    ///< of a row of values, whole vectors
  int64_t columns;  ///< of a row of features, whole vectors
  T *products, *added, *total, *running, *value, *out, *keys, *weights, *copy;
  T *query, *key, *query_shift, *key_shift;

  linear_workspace(const linear_block& b, arena& a)
      : lanes(whole_vectors<T>(b.value_dim)), columns(whole_vectors<T>(b.features)) {
    products = a.take<T>(b.features * lanes);
    added = a.take<T>(b.features * lanes);
    total = a.take<T>(b.features);
    running = a.take<T>(b.features);
    value = a.take<T>(linear_rows * lanes);
    out = a.take<T>(linear_rows * lanes);
    keys = a.take<T>(b.features * linear_rows);
    weights = a.take<T>(linear_rows * linear_rows);
    copy = a.take<T>(width<T> * b.features);
    const int64_t mapped = b.map == feature_map::given ? 0 : linear_rows * columns;
    query = a.take<T>(mapped);
    key = a.take<T>(mapped);
    query_shift = a.take<T>(columns);
    key_shift = a.take<T>(columns);
  }
};

template <class T>
class linear_run {
 public:
  linear_run(const linear_block& b, arena& a) : b_(b), ws_(b, a) {
    for (int64_t f = 0; f < ws_.columns; ++f) {
      const bool real = f < b.features;
      ws_.query_shift[f] = real && b.query_shift ? static_cast<const T*>(b.query_shift)[f] : T(0);
      ws_.key_shift[f] =
          real && b.key_reference ? -static_cast<const T*>(b.key_reference)[f] : T(0);
    }
  }

  void run() {
    if (b_.query) narrow();
    for (int64_t row = 0; row < b_.rows; row += linear_rows) {
      const int64_t left = b_.rows - row;
      block(row, left < linear_rows ? left : linear_rows);
    }
  }

 private:
  row_view<T> rows_of(const void* data, ptrdiff_t stride, int64_t row) const {
    return {static_cast<const T*>(data) + row * stride, stride};
  }

  row_view<T> features_of(row_view<T> in, int64_t rows, bool is_query) {
    if (b_.map == feature_map::given) return in;
    const row_view<T> to{is_query ? ws_.query : ws_.key, ws_.columns};
    map_rows<T>(in, rows, b_.features, b_.map, is_query ? ws_.query_shift : ws_.key_shift, is_query,
                to);
    return to;
  }

  void block(int64_t row, int64_t rows) {
    row_view<T> key{nullptr, 0}, value{nullptr, 0};
    if (b_.key) {
      key = features_of(rows_of(b_.key, b_.key_stride, row), rows, false);
      value = values(row, rows);
    }
    if (b_.query) {
      const row_view<T> query = features_of(rows_of(b_.query, b_.query_stride, row), rows, true);
      sum_weights(query, key, row, rows);
      const auto all = [&](int64_t) { return b_.features; };
      product<T, false, false>(query, {ws_.products, ws_.lanes}, ws_.lanes, rows, all,
                               {ws_.out, ws_.lanes});
      if (b_.key) within(query, key, value, rows);
      copy_out(row, rows);
    }
    if (b_.key) carry(key, value, rows, row + rows < b_.rows);
  }

  /// The sums, in the type of the products.
  void narrow() {
    for (int64_t f = 0; f < b_.features; ++f) {
      T* const to = ws_.products + f * ws_.lanes;
      const double* const from = b_.products + f * b_.value_dim;
      if (const double* const base = b_.base_products) {
        for (int64_t c = 0; c < b_.value_dim; ++c)
          to[c] = static_cast<T>(base[f * b_.value_dim + c] + from[c]);
        ws_.total[f] = static_cast<T>(b_.base_total[f] + b_.total[f]);
      } else {
        for (int64_t c = 0; c < b_.value_dim; ++c) to[c] = static_cast<T>(from[c]);
        ws_.total[f] = static_cast<T>(b_.total[f]);
      }
      for (int64_t c = b_.value_dim; c < ws_.lanes; ++c) to[c] = T(0);
    }
  }

  /// Rows of values as whole vectors: in place where they are.
  row_view<T> values(int64_t row, int64_t rows) {
    const row_view<T> value = rows_of(b_.value, b_.value_stride, row);
    if (b_.value_dim == ws_.lanes) return value;
    for (int64_t r = 0; r < rows; ++r) {
      T* const to = ws_.value + r * ws_.lanes;
      for (int64_t c = 0; c < b_.value_dim; ++c) to[c] = value.data[r * value.stride + c];
      for (int64_t c = b_.value_dim; c < ws_.lanes; ++c) to[c] = T(0);
    }
    return {ws_.value, ws_.lanes};
  }

  void copy_out(int64_t row, int64_t rows) {
    const T* const sums = static_cast<const T*>(b_.sums) + row;
    for (int64_t r = 0; r < rows; ++r) {
      T* const to = static_cast<T*>(b_.out) + (row + r) * b_.out_stride;
      const T* const from = ws_.out + r * ws_.lanes;
      const T by = b_.divide && sums[r] != T(0) ? sums[r] : T(1);
      // Divisions of a whole row take half as long as the products; 1 / by may overflow.
      const T factor = T(1) / by;
      if (factor < limits<T>::infinity && factor > -limits<T>::infinity)
        for (int64_t c = 0; c < b_.value_dim; ++c) to[c] = from[c] * factor;
      else
        for (int64_t c = 0; c < b_.value_dim; ++c) to[c] = from[c] / by;
    }
  }

  /// phi(q_i) . z, where with keys z grows by phi(k_i) first.
  void sum_weights(row_view<T> query, row_view<T> key, int64_t row, int64_t rows) {
    T* const z = ws_.running;
    for (int64_t f = 0; f < b_.features; ++f) z[f] = T(0);
    for (int64_t r = 0; r < rows; ++r) {
      if (key.data)
        for (int64_t f = 0; f < b_.features; ++f) z[f] += key.data[r * key.stride + f];
      T& sum = static_cast<T*>(b_.sums)[row + r];
      sum = b_.per_channel ? divide_channels(ws_.query + r * query.stride)
                           : dot_total(query.data + r * query.stride);
    }
  }

  /// Exponentials over the running sums of their channels; returns their own sum.
  T divide_channels(T* query) const {
    constexpr int w = width<T>;
    vec<T> sum = broadcast(T(0));
    int64_t f = 0;
    for (; f + w <= b_.features; f += w) {
      const vec<T> e = load(query + f);
      sum = sum + e;
      store(query + f, e / (load(ws_.total + f) + load(ws_.running + f)));
    }
    T all = sum_of_lanes(sum);
    for (; f < b_.features; ++f) {
      all += query[f];
      query[f] /= ws_.total[f] + ws_.running[f];
    }
    return all;
  }

  T dot_total(const T* query) const {
    constexpr int w = width<T>;
    vec<T> sum = broadcast(T(0));
    int64_t f = 0;
    for (; f + w <= b_.features; f += w)
      sum = fma(load(query + f), load(ws_.total + f) + load(ws_.running + f), sum);
    T all = sum_of_lanes(sum);
    for (; f < b_.features; ++f) all += query[f] * (ws_.total[f] + ws_.running[f]);
    return all;
  }

  static T sum_of_lanes(vec<T> sum) {
    T lanes[width<T>];
    store(lanes, sum);
    for (int half = width<T> / 2; half; half /= 2)
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
  }

  /// out += lower triangle of (query key^T) value.
  void within(row_view<T> query, row_view<T> key, row_view<T> value, int64_t rows) {
    pack_keys(key, rows);
    for (int64_t i = 0; i < rows; i += width<T>) {
      // A strip of rows needs the keys up to its last one.
      const int64_t strip = rows - i < width<T> ? rows - i : width<T>;
      const int64_t lanes = i + width<T>;
      const auto all = [&](int64_t) { return b_.features; };
      product<T, false, false>({query.data + i * query.stride, query.stride},
                               {ws_.keys, linear_rows}, lanes, strip, all,
                               {ws_.weights + i * linear_rows, linear_rows});
      // A register block of the next product may reach 11 rows into the next strip.
      const int64_t end = lanes + 12 < linear_rows ? lanes + 12 : linear_rows;
      for (int64_t r = i; r < i + strip; ++r)
        for (int64_t j = r + 1; j < end; ++j) ws_.weights[r * linear_rows + j] = T(0);
    }
    const auto seen = [&](int64_t end) { return end; };
    product<T, false, true>({ws_.weights, linear_rows}, value, ws_.lanes, rows, seen,
                            {ws_.out, ws_.lanes});
  }

  /// Keys into lanes: keys[f][j]; those past the last one are 0.
  void pack_keys(row_view<T> key, int64_t rows) {
    constexpr int w = width<T>;
    for (int64_t j = 0; j < rows; j += w) {
      if (rows - j >= w) {
        rows_to_lanes(row_view<T>{key.data + j * key.stride, key.stride}, b_.features, ws_.keys + j,
                      linear_rows);
        continue;
      }
      for (int64_t r = 0; r < w; ++r)
        for (int64_t f = 0; f < b_.features; ++f)
          ws_.copy[r * b_.features + f] = j + r < rows ? key.data[(j + r) * key.stride + f] : T(0);
      rows_to_lanes(row_view<T>{ws_.copy, b_.features}, b_.features, ws_.keys + j, linear_rows);
    }
  }

  /// Adds the block's keys and values to the sums.
  void carry(row_view<T> key, row_view<T> value, int64_t rows, bool more) {
    const auto all = [&](int64_t) { return rows; };
    product<T, true, false>(key, value, ws_.lanes, b_.features, all, {ws_.added, ws_.lanes});
    for (int64_t f = 0; f < b_.features; ++f)
      for (int64_t c = 0; c < b_.value_dim; ++c)
        b_.products[f * b_.value_dim + c] += static_cast<double>(ws_.added[f * ws_.lanes + c]);
    for (int64_t f = 0; f < b_.features; ++f) ws_.running[f] = T(0);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t f = 0; f < b_.features; ++f) ws_.running[f] += key.data[r * key.stride + f];
    for (int64_t f = 0; f < b_.features; ++f) b_.total[f] += static_cast<double>(ws_.running[f]);
    if (more && b_.query) narrow();
  }

  const linear_block& b_;
  linear_workspace<T> ws_;
};

template <class T>
size_t linear_scratch(const linear_block& block) {
  arena a{nullptr};
  linear_workspace<T> unused(block, a);
  return a.used;
}

template <class T>
void linear(const linear_block& block) noexcept {
  arena a{static_cast<char*>(block.scratch)};
  linear_run<T>(block, a).run();
}

}  // namespace
