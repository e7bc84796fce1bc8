// SPDX-License-Identifier: BSD-3-Clause
//
// Linear attention in blocks of rows: running sums between blocks, masked products of queries and
// keys within a block. A block costs 4 * features * value_dim operations per row for the sums and,
// with half of its triangle skipped, about rows * (features + value_dim) within.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/linear/decay-inl.hpp"
#include "kernels/linear/features-inl.hpp"
#include "kernels/linear/linear.hpp"
#include "kernels/linear/references-inl.hpp"
#include "kernels/linear/rows-inl.hpp"
#include "kernels/linear/strip_sums-inl.hpp"
#include "kernels/linear/triangle-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/stop_signal.hpp"
#include "kernels/tile/product-inl.hpp"
#include "kernels/tile/rows-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

template <class T>
class linear_run {
 public:
  linear_run(const linear_block& b, arena& a)
      : b_(b),
        form_(*b.form),
        ws_(*b.form, a),
        logs_(form_.map >= feature_map::exponential),
        references_(form_, ws_, b.base, b.own, b.key.data && logs_),
        fades_(b.decay, ws_.fades) {}

  void run() {
    for (int64_t row = 0; row < b_.rows && !b_.stop->requested(); row += linear_rows) {
      const int64_t left = b_.rows - row, rows = left < linear_rows ? left : linear_rows;
      if (adds()) {
        key_ = map(b_.key, b_.key_turn, row, rows, ws_.key_in, ws_.key_rows);
        value_ = whole_rows(b_.value, row, rows, form_.value_dim, ws_.value);
      }
      if (reads()) query_ = map(b_.query, b_.query_turn, row, rows, ws_.query_in, ws_.query_rows);
      if (b_.range) see(rows);
      for (int64_t from = 0, to; from < rows; from = to) {
        to = rows;
        if (adds() && logs_ && references_.end_of_strip(key_, from, rows, to)) stale_ = true;
        strip(row + from, from, to - from);
      }
    }
  }

 private:
  bool reads() const { return b_.query.data != nullptr; }
  bool adds() const { return b_.key.data != nullptr; }

  /// Features of rows, or their logarithms; in place if the caller has them.
  row_view<T> map(const matrix& m, const double* turn, int64_t row, int64_t rows, T* in, T* out) {
    const row_view<T> x = view_rows(m, row, rows, form_.head_dim, in);
    if (form_.scale == 1 &&
        (form_.map == feature_map::given || form_.map == feature_map::exponential))
      return x;
    mapped_rows<T>(x, rows, form_, turn ? turn + 2 * row : nullptr, out, ws_.columns);
    return {out, ws_.columns};
  }

  void see(int64_t rows) {
    const bool zeros = form_.map == feature_map::elu;  // e^x may be 0, elu(x) + 1 never is
    if (reads() && !logs_) note_smallest(b_.range->query, query_, rows, form_.features, zeros);
    if (!adds() || logs_) return;
    note_smallest(b_.range->key, key_, rows, form_.features, zeros);
    note_smallest(b_.range->value, value_, rows, ws_.lanes, false);
  }

  // ---- one strip -------------------------------------------------------------------------------

  void strip(int64_t row, int64_t from, int64_t rows) {
    row_view<T> key{nullptr, 0}, value{nullptr, 0};
    if (adds()) {
      key = below(key_, from), value = below(value_, from);
      if (logs_) {
        map_rows<T>(key, rows, form_.features, ws_.key, ws_.columns, [&](vec<T> x, int64_t f) {
          return natural_exp<T>(x + load(ws_.key_shift + f));
        });
        key = {ws_.key, ws_.columns};
      }
    }
    if (b_.decay) fades_.read(row, rows);
    if (reads()) {
      if (stale_) narrow();
      row_view<T> query = below(query_, from);
      if (logs_) query = exponentials(query, rows);
      if (has_weights()) sum_weights(query, key, rows);
      product<T, false>(query, {ws_.products, ws_.lanes}, ws_.lanes, rows, form_.features,
                        {ws_.out, ws_.lanes});
      if (b_.decay) fades_.of_rows(ws_.out, ws_.lanes, rows);
      if (adds()) within(query, key, value, rows);
      write_out(row, rows);
    }
    if (!adds()) return;
    add_strip(key, value, rows, form_, b_.decay ? &fades_ : nullptr, ws_, b_.own);
    stale_ = true;
  }

  /// Whether rows are divided by a sum of weights.
  bool has_weights() const {
    return form_.norm == linear_norm::weights || form_.norm == linear_norm::channels;
  }

  row_view<T> exponentials(row_view<T> logs, int64_t rows) {
    exponentials_of_rows<T>(logs, rows, ws_.query_shift, form_.features, ws_.query, ws_.columns);
    return {ws_.query, ws_.columns};
  }

  /// Converts the sums for queries to the type of the products.
  void narrow() {
    stale_ = false;
    if (logs_) references_.join();
    const double fade = b_.decay ? fades_.since_begin() : 1;
    const bool divided = form_.norm == linear_norm::channels && !adds();
    for (int64_t f = 0; f < form_.features; ++f) {
      double base = ws_.base_factor[f] * fade;
      const double own = ws_.own_factor[f];
      double total = (b_.base.products ? b_.base.total[f] * base : 0.0) +
                     (adds() ? b_.own.total[f] * own : 0.0);
      if (divided) base /= total, total = 1;
      ws_.total[f] = static_cast<T>(total);
      narrow_row(f, base, own);
    }
  }

  void narrow_row(int64_t f, double base_factor, double own_factor) {
    T* const to = ws_.products + f * ws_.lanes;
    const int64_t row = f * form_.value_dim;
    const double* const base = b_.base.products ? b_.base.products + row : nullptr;
    const double* const own = b_.own.products ? b_.own.products + row : nullptr;
    if (base && adds())
      for (int64_t c = 0; c < form_.value_dim; ++c)
        to[c] = static_cast<T>(base[c] * base_factor + own[c] * own_factor);
    else if (adds())
      for (int64_t c = 0; c < form_.value_dim; ++c) to[c] = static_cast<T>(own[c] * own_factor);
    else
      for (int64_t c = 0; c < form_.value_dim; ++c) to[c] = static_cast<T>(base[c] * base_factor);
    for (int64_t c = form_.value_dim; c < ws_.lanes; ++c) to[c] = T(0);
  }

  /// Sums phi(q_i) . z; with keys, z first grows by phi(k_i).
  void sum_weights(row_view<T> query, row_view<T> key, int64_t rows) {
    T* const z = ws_.running;
    const bool channels = form_.norm == linear_norm::channels;
    for (int64_t f = 0; f < form_.features; ++f) z[f] = T(0);
    for (int64_t r = 0; r < rows; ++r) {
      if (key.data)
        for (int64_t f = 0; f < form_.features; ++f) z[f] += key.data[r * key.stride + f];
      ws_.sums[r] = channels && key.data ? divide_channels(ws_.query + r * query.stride)
                                         : dot_total(query.data + r * query.stride);
    }
  }

  /// z over all keys so far.
  vec<T> total(int64_t f) const {
    return fma(load(ws_.running + f), load(ws_.factor + f), load(ws_.total + f));
  }
  T total_of_one(int64_t f) const { return ws_.total[f] + ws_.running[f] * ws_.factor[f]; }

  /// Divides exponentials by the running sums of their channels; returns their own sum.
  T divide_channels(T* query) const {
    constexpr int w = width<T>;
    vec<T> sum = broadcast(T(0));
    int64_t f = 0;
    for (; f + w <= form_.features; f += w) {
      const vec<T> e = load(query + f);
      sum = sum + e;
      store(query + f, e / total(f));
    }
    T all = sum_of_lanes<T>(sum);
    for (; f < form_.features; ++f) {
      all += query[f];
      query[f] /= total_of_one(f);
    }
    return all;
  }

  T dot_total(const T* query) const {
    constexpr int w = width<T>;
    vec<T> sum = broadcast(T(0));
    int64_t f = 0;
    for (; f + w <= form_.features; f += w) sum = fma(load(query + f), total(f), sum);
    T all = sum_of_lanes<T>(sum);
    for (; f < form_.features; ++f) all += query[f] * total_of_one(f);
    return all;
  }

  /// out += lower triangle of (query key^T) value.
  void within(row_view<T> query, row_view<T> key, row_view<T> value, int64_t rows) {
    pack_rows(key, rows, form_.features, ws_.copy, ws_.keys);
    // Make the features relative to the references that queries read.
    for (int64_t f = 0; logs_ && f < form_.features; ++f)
      for (int64_t j = 0; ws_.factor[f] != T(1) && j < rows; j += width<T>) {
        T* const at = ws_.keys + f * linear_rows + j;
        store(at, load(at) * broadcast(ws_.factor[f]));
      }
    lower_products(query, ws_.keys, form_.features, rows, ws_.weights);
    if (b_.decay) fades_.of_pairs(ws_.weights, linear_rows, rows);
    add_lower(ws_.weights, value, ws_.lanes, rows, ws_.clean, ws_.out);
  }

  T divisor(int64_t row, int64_t r) const {
    if (form_.norm == linear_norm::none) return T(1);
    if (form_.norm == linear_norm::count)
      return static_cast<T>(b_.count + (adds() ? row + r + 1 : 0));
    return ws_.sums[r];
  }

  void write_out(int64_t row, int64_t rows) {
    const row_view<T> out{ws_.out, ws_.lanes};
    T sums = T(0);
    for (int64_t r = 0; r < rows; ++r) {
      T* const from = ws_.out + r * ws_.lanes;
      const T sum = divisor(row, r), by = sum != T(0) ? sum : T(1), factor = T(1) / by;
      sums += T(0) * sum;
      if (b_.range && r == 0 && !all_finite<T>(out, rows, ws_.lanes)) b_.range->overflow = true;
      // Dividing a whole row takes half as long as the products, but 1 / by may overflow.
      const bool times = factor < limits<T>::infinity && factor > -limits<T>::infinity;
      T* const to = is_direct<T>(b_.out_layout)
                        ? static_cast<T*>(b_.out) + (row + r) * b_.out_layout.row
                        : from;
      if (times)
        for (int64_t c = 0; c < form_.value_dim; ++c) to[c] = from[c] * factor;
      else
        for (int64_t c = 0; c < form_.value_dim; ++c) to[c] = from[c] / by;
      if (to == from) write_row(b_.out, b_.out_layout, row + r, form_.value_dim, from);
    }
    if (b_.range && sums != T(0)) b_.range->overflow = true;
  }

  const linear_block& b_;
  const linear_form& form_;
  linear_workspace<T> ws_;
  const bool logs_;
  feature_references<T> references_;
  row_fades<T> fades_;
  bool stale_ = true;  // the sums have changed since queries last read them
  row_view<T> query_{nullptr, 0}, key_{nullptr, 0}, value_{nullptr, 0};  // of the current block
};

template <class T>
void linear(const linear_block& block) noexcept {
  arena a{static_cast<char*>(block.scratch)};
  linear_run<T>(block, a).run();
}

}  // namespace
