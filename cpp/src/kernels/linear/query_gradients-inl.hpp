// SPDX-License-Identifier: BSD-3-Clause
//
// The pass over queries: their gradients from the sums over keys, in the order of the forward pass,
// and the notes that the pass over keys needs.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/linear/decay-inl.hpp"
#include "kernels/linear/gradient_rows-inl.hpp"
#include "kernels/linear/references-inl.hpp"
#include "kernels/linear/strip_sums-inl.hpp"
#include "kernels/linear/triangle-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/stop_signal.hpp"

namespace {

template <class T>
class query_gradients {
 public:
  query_gradients(const linear_gradient_block& b, arena& a)
      : b_(b),
        form_(*b.form),
        ws_(*b.form, a),
        logs_(form_.map >= feature_map::exponential),
        references_(form_, ws_, b.base, b.own, b.key.data && logs_),
        fades_(b.decay, ws_.fades) {
    for (int64_t f = 0; f < ws_.columns; ++f) ws_.later[f] = T(1);
  }

  void run() {
    for (int64_t row = 0; row < b_.rows && !b_.stop->requested(); row += linear_rows) {
      const int64_t left = b_.rows - row, rows = left < linear_rows ? left : linear_rows;
      if (adds()) {
        key_ = feature_rows(b_.key, form_, b_.key_turn, row, rows, ws_.key_in, ws_.key_rows);
        value_ = whole_rows(b_.value, row, rows, form_.value_dim, ws_.value);
      }
      query_ =
          feature_rows(b_.query, form_, b_.query_turn, row, rows, ws_.query_in, ws_.query_rows);
      grad_ = whole_rows(b_.grad, row, rows, form_.value_dim, ws_.grad);
      if (b_.range) see(rows);
      for (int64_t from = 0, to; from < rows; from = to) {
        to = rows;
        if (adds() && logs_ && references_.end_of_strip(key_, from, rows, to)) stale_ = true;
        strip(row, from, to - from);
      }
    }
  }

 private:
  bool adds() const { return b_.key.data != nullptr; }
  bool means_of_channels() const { return form_.norm == linear_norm::channels; }

  /// Place of a row's note; without keys for the same rows, notes are not read after their strip.
  int64_t noted(int64_t row) const { return adds() ? row : row % linear_rows; }
  T* weights(int64_t row) const {
    return static_cast<T*>(b_.notes.weights) + noted(row) * b_.notes.columns;
  }
  T* means(int64_t row) const {
    return static_cast<T*>(b_.notes.means) +
           noted(row) * (means_of_channels() ? b_.notes.columns : 1);
  }

  void see(int64_t rows) {
    const bool zeros = form_.map == feature_map::elu;  // e^x may be 0, elu(x) + 1 never is
    note_smallest(b_.range->grad, grad_, rows, form_.value_dim, false);
    if (!logs_) note_smallest(b_.range->query, query_, rows, form_.features, zeros);
    if (!adds() || logs_) return;
    note_smallest(b_.range->key, key_, rows, form_.features, zeros);
    note_smallest(b_.range->value, value_, rows, form_.value_dim, false);
  }

  void strip(int64_t row, int64_t from, int64_t rows) {
    const row_view<T> grad = below(grad_, from);
    row_view<T> key{nullptr, 0}, value{nullptr, 0}, query = below(query_, from);
    if (b_.decay) fades_.read(row + from, rows);
    if (adds()) key = keys(from, rows), value = below(value_, from);
    if (stale_) narrow();
    note_strip(row + from);
    if (logs_) {
      exponentials_of_rows<T>(query, rows, ws_.query_shift, form_.features, ws_.query, ws_.columns);
      clear_pads(ws_.query, rows, form_.features, ws_.columns);
      query = {ws_.query, ws_.columns};
    }
    product<T, false>(grad, {ws_.sums.turned, ws_.columns}, ws_.columns, rows, form_.value_dim,
                      {ws_.slopes, ws_.columns});
    if (b_.decay) fades_.of_rows(ws_.slopes, ws_.columns, rows);
    if (b_.decay) note_passing(query, row + from, rows);
    row_view<T> read{nullptr, 0};
    if (adds()) {
      read = relative(key, rows);
      pack_rows(value, rows, form_.value_dim, ws_.copy, ws_.panel);
      lower_products(grad, ws_.panel, form_.value_dim, rows, ws_.pairs);
      if (b_.decay) fades_.of_pairs(ws_.pairs, linear_rows, rows);
      add_lower(ws_.pairs, read, ws_.columns, rows, ws_.clean_rows, ws_.slopes);
    }
    for (int64_t f = 0; f < ws_.columns; ++f) ws_.running[f] = T(0);
    for (int64_t r = 0; r < rows; ++r)
      finish(query.data + r * query.stride, read.data ? read.data + r * read.stride : nullptr,
             ws_.slopes + r * ws_.columns, row + from + r);
    add_to_later(grad, row + from, rows);
    write(row, from, rows);
    if (!adds()) return;
    add_strip(key, value, rows, form_, b_.decay ? &fades_ : nullptr, ws_, b_.own);
    stale_ = true;
  }

  /// Keys relative to their own references.
  row_view<T> keys(int64_t from, int64_t rows) {
    const row_view<T> logs = below(key_, from);
    if (!logs_) return logs;
    map_rows<T>(logs, rows, form_.features, ws_.key, ws_.columns,
                [&](vec<T> x, int64_t f) { return natural_exp<T>(x + load(ws_.key_shift + f)); });
    clear_pads(ws_.key, rows, form_.features, ws_.columns);
    return {ws_.key, ws_.columns};
  }

  /// Keys relative to the references that queries read.
  row_view<T> relative(row_view<T> key, int64_t rows) {
    if (!logs_) return key;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t f = 0; f < ws_.columns; f += width<T>)
        store(ws_.faded + r * ws_.columns + f,
              load(key.data + r * key.stride + f) * load(ws_.factor + f));
    return {ws_.faded, ws_.columns};
  }

  /// Converts the sums for queries to the type of the products.
  void narrow() {
    stale_ = false;
    if (logs_) join();
    const double fade = b_.decay ? fades_.since_begin() : 1;
    const bool base = b_.base.products != nullptr;
    for (int64_t f = 0; f < ws_.columns; ++f) ws_.total[f] = T(1);
    for (int64_t f = 0; f < form_.features; ++f) {
      if (b_.decay) ws_.base_factor[f] = fade;
      const double total = (base ? b_.base.total[f] * ws_.base_factor[f] : 0.0) +
                           (adds() ? b_.own.total[f] * ws_.own_factor[f] : 0.0);
      ws_.total[f] = static_cast<T>(total);
    }
    for (int64_t f = 0; f < ws_.columns; ++f) ws_.inverse[f] = T(1) / ws_.total[f];
    narrow_both(form_, b_.base.products, ws_.base_factor, adds() ? b_.own.products : nullptr,
                ws_.own_factor, ws_.sums);
  }

  /// Computes the joint references, and the factors of a later strip's sums relative to the first
  /// strip.
  void join() {
    references_.join();
    for (int64_t f = 0; f < form_.features; ++f) {
      const double here = static_cast<double>(ws_.joint[f]);
      if (!strips_) b_.later_own.reference[f] = here;
      const double first = b_.later_own.reference[f];
      ws_.later[f] = here == first ? T(1) : static_cast<T>(__builtin_exp(first - here));
      fallen_ = fallen_ || !(here == first);
    }
  }

  void note_strip(int64_t row) {
    if (!adds()) return void(++strips_);
    b_.notes.strips[1 + strips_] = row;
    b_.notes.strips[0] = strips_ + 1;
    if (logs_) {
      T* const to = static_cast<T*>(b_.notes.references) + strips_ * b_.notes.columns;
      for (int64_t f = 0; f < form_.features; ++f) to[f] = ws_.joint[f];
    }
    if (b_.decay) {
      T* const to = static_cast<T*>(b_.notes.sums) + strips_ * form_.features * b_.notes.lanes;
      for (int64_t f = 0; f < form_.features; ++f)
        for (int64_t c = 0; c < ws_.lanes; ++c)
          to[f * b_.notes.lanes + c] = ws_.sums.products[f * ws_.lanes + c];
    }
    ++strips_;
  }

  /// Sums over keys j before the strip of decay_ij (q_i . k_j) (g_i . v_j).
  void note_passing(row_view<T> query, int64_t row, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
      T sum = T(0);
      for (int64_t f = 0; f < form_.features; ++f)
        sum += query.data[r * query.stride + f] * ws_.slopes[r * ws_.columns + f];
      *means(row + r) = sum;
    }
  }

  // ---- one row ---------------------------------------------------------------------------------

  /// From sums of (g . v_j) weighted by keys to slopes of features, or of their logarithms.
  void finish(const T* query, const T* key, T* slopes, int64_t row) {
    for (int64_t f = 0; key && f < ws_.columns; f += width<T>)
      store(ws_.running + f, load(ws_.running + f) + load(key + f));
    switch (form_.norm) {
      case linear_norm::weights:
        return by_weights(query, slopes, row);
      case linear_norm::channels:
        return by_channels(query, slopes, row);
      case linear_norm::count: {
        const vec<T> by = broadcast(T(1) / static_cast<T>(b_.count + (adds() ? row + 1 : 0)));
        return scaled(query, slopes, row, [&](vec<T> x) { return x * by; });
      }
      case linear_norm::none:
        return scaled(query, slopes, row, [](vec<T> x) { return x; });
    }
  }

  template <class F>
  void scaled(const T* query, T* slopes, int64_t row, F&& by) {
    T* const w = weights(row);
    for (int64_t f = 0; f < ws_.columns; f += width<T>) {
      store(slopes + f, by(load(slopes + f)));
      store(w + f, by(load(query + f)));
    }
  }

  vec<T> total(int64_t f) const { return load(ws_.total + f) + load(ws_.running + f); }

  void by_weights(const T* query, T* slopes, int64_t row) {
    vec<T> sums = broadcast(T(0)), products = broadcast(T(0));
    for (int64_t f = 0; f < ws_.columns; f += width<T>) {
      sums = fma(load(query + f), total(f), sums);
      products = fma(load(query + f), load(slopes + f), products);
    }
    const T all = sum_of_lanes<T>(sums), inverse = T(1) / all;
    if (all == T(0)) return without_weight(slopes, row);
    const T mean = sum_of_lanes<T>(products) / all;
    const vec<T> h = broadcast(mean), by = broadcast(inverse), divisor = broadcast(all);
    const bool times = inverse - inverse == T(0);
    const auto over = [&](vec<T> x) { return times ? x * by : x / divisor; };
    T* const w = weights(row);
    *means(row) = mean;
    for (int64_t f = 0; f < ws_.columns; f += width<T>) {
      const vec<T> q = load(query + f);
      const vec<T> slope = over(load(slopes + f) - h * total(f));
      store(slopes + f, logs_ ? slope * q : slope);
      store(w + f, over(q));
    }
  }

  void without_weight(T* slopes, int64_t row) {
    *means(row) = T(0);
    for (int64_t f = 0; f < ws_.columns; ++f) slopes[f] = weights(row)[f] = T(0);
  }

  /// Subtracts each channel's mean over its own weights.
  void by_channels(const T* query, T* slopes, int64_t row) {
    vec<T> sums = broadcast(T(0)), products = broadcast(T(0));
    T *const g = means(row), *const w = weights(row);
    for (int64_t f = 0; f < ws_.columns; f += width<T>) {
      const vec<T> q = load(query + f);
      const vec<T> by = adds() ? broadcast(T(1)) / total(f) : load(ws_.inverse + f);
      const vec<T> mean = load(slopes + f) * by;
      store(g + f, mean);
      store(w + f, q * by);
      sums = sums + q;
      products = fma(q, mean, products);
    }
    const T all = T(1) / sum_of_lanes<T>(sums);
    const vec<T> h = broadcast(sum_of_lanes<T>(products) * all), by = broadcast(all);
    for (int64_t f = 0; f < ws_.columns; f += width<T>) {
      store(slopes + f, (load(g + f) - h) * load(query + f) * by);
      store(w + f, load(w + f) * by);
    }
  }

  // ---- after a strip ---------------------------------------------------------------------------

  /// Sums over queries, relative to the first strip.
  void add_to_later(row_view<T> grad, int64_t row, int64_t rows) {
    if (!b_.later_own.products) return;
    const row_view<T> w = fallen_ || b_.decay ? in_first_references(row, rows)
                                              : row_view<T>{weights(row), b_.notes.columns};
    add_to_sums(w, grad, rows, form_.features, form_.value_dim, ws_.lanes, 1.0, ws_.added,
                b_.later_own.products);
    if (form_.norm != linear_norm::weights && !means_of_channels()) return;
    T* const sum = ws_.running;
    for (int64_t f = 0; f < ws_.columns; ++f) sum[f] = T(0);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t f = 0; f < ws_.columns; f += width<T>) {
        const vec<T> h =
            means_of_channels() ? load(means(row + r) + f) : broadcast(*means(row + r));
        store(sum + f, fma(load(w.data + r * w.stride + f), h, load(sum + f)));
      }
    for (int64_t f = 0; f < form_.features; ++f)
      b_.later_own.total[f] += static_cast<double>(sum[f]);
  }

  /// Weights scaled to the references of the first strip.
  row_view<T> in_first_references(int64_t row, int64_t rows) {
    const T since = b_.decay ? static_cast<T>(fades_.since_begin()) : T(1);
    for (int64_t r = 0; r < rows; ++r) {
      const vec<T> fade = broadcast(b_.decay ? since * ws_.fades.since[r] : T(1));
      for (int64_t f = 0; f < ws_.columns; f += width<T>)
        store(ws_.spare + r * ws_.columns + f,
              load(weights(row + r) + f) * load(ws_.later + f) * fade);
    }
    return {ws_.spare, ws_.columns};
  }

  void write(int64_t row, int64_t from, int64_t rows) {
    if (b_.range && !all_finite<T>({ws_.slopes, ws_.columns}, rows, ws_.columns))
      b_.range->overflow = true;
    const bool elements = form_.map == feature_map::turned || form_.map == feature_map::projected;
    const row_view<T> raw =
        elements ? view_rows(b_.query, row + from, rows, form_.head_dim, ws_.raw) : row_view<T>{};
    const double* const turn = b_.query_turn ? b_.query_turn + 2 * (row + from) : nullptr;
    write_rows(
        b_.query_out, row + from, rows, form_.head_dim,
        slopes_of_elements(form_, below(query_, from), raw, turn, rows, ws_.slopes, ws_.spare));
  }

  const linear_gradient_block& b_;
  const linear_form& form_;
  linear_gradient_workspace<T> ws_;
  const bool logs_;
  feature_references<T> references_;
  row_fades<T> fades_;
  int64_t strips_ = 0;
  bool fallen_ = false;  // references have risen since the first strip
  bool stale_ = true;    // the sums have changed since queries last read them
  row_view<T> query_{nullptr, 0}, key_{nullptr, 0}, value_{nullptr, 0}, grad_{nullptr, 0};
};

template <class T>
void linear_query_gradients(const linear_gradient_block& block) noexcept {
  arena a{static_cast<char*>(block.scratch)};
  query_gradients<T>(block, a).run();
}

}  // namespace
