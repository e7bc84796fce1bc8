// SPDX-License-Identifier: BSD-3-Clause
//
// The pass over keys, from a chunk's last strip to its first: gradients of keys, values and
// log-decays from the sums over later queries.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/linear/decay-inl.hpp"
#include "kernels/linear/decay_gradients-inl.hpp"
#include "kernels/linear/gradient_rows-inl.hpp"
#include "kernels/linear/strip_sums-inl.hpp"
#include "kernels/linear/triangle-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/stop_signal.hpp"

namespace {

template <class T>
class key_gradients {
 public:
  key_gradients(const linear_gradient_block& b, arena& a)
      : b_(b),
        form_(*b.form),
        ws_(*b.form, a),
        logs_(form_.map >= feature_map::exponential),
        fades_(b.decay, ws_.fades) {
    for (int64_t f = 0; f < ws_.columns; ++f) ws_.factor[f] = ws_.key_shift[f] = T(0);
    for (int64_t f = 0; f < form_.features; ++f) ws_.base_factor[f] = ws_.own_factor[f] = 1;
  }

  void run() {
    const int64_t whole = (b_.rows + linear_rows - 1) / linear_rows;
    int64_t end = b_.rows;
    for (int64_t s = (adds() ? b_.notes.strips[0] : whole) - 1; s >= 0; --s) {
      if (b_.stop->requested()) return;
      const int64_t row = adds() ? b_.notes.strips[1 + s] : s * linear_rows;
      strip(s, row, end - row);
      end = row;
    }
  }

 private:
  /// Whether the chunk has queries for the same rows, which come after base.
  bool adds() const { return b_.grad.data != nullptr; }
  bool has_means() const {
    return form_.norm == linear_norm::weights || form_.norm == linear_norm::channels;
  }

  const T* weights(int64_t row) const {
    return static_cast<const T*>(b_.notes.weights) + row * b_.notes.columns;
  }
  vec<T> mean(int64_t row, int64_t f) const {
    const T* const means = static_cast<const T*>(b_.notes.means);
    return form_.norm == linear_norm::channels ? load(means + row * b_.notes.columns + f)
                                               : broadcast(means[row]);
  }

  void strip(int64_t s, int64_t row, int64_t rows) {
    if (b_.decay) fades_.read(row, rows);
    if (logs_) take_references(s);
    if (stale_) narrow();
    const row_view<T> mapped =
        feature_rows(b_.key, form_, b_.key_turn, row, rows, ws_.key_in, ws_.key_rows);
    const row_view<T> value = whole_rows(b_.value, row, rows, form_.value_dim, ws_.value);
    if (b_.range) see(mapped, value, rows);
    const row_view<T> key = logs_ ? exponentials(mapped, rows) : mapped;
    product<T, false>(value, {ws_.sums.turned, ws_.columns}, ws_.columns, rows, form_.value_dim,
                      {ws_.slopes, ws_.columns});
    product<T, false>(key, {ws_.sums.products, ws_.lanes}, ws_.lanes, rows, form_.features,
                      {ws_.out, ws_.lanes});
    if (b_.decay) fades_.of_rows_to_end(ws_.slopes, ws_.columns, rows);
    if (b_.decay) fades_.of_rows_to_end(ws_.out, ws_.lanes, rows);
    if (adds()) within(s, key, value, row, rows);
    if (has_means()) subtract_means(row, rows);
    if (logs_)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t f = 0; f < ws_.columns; f += width<T>) {
          T* const at = ws_.slopes + r * ws_.columns + f;
          store(at, load(at) * load(key.data + r * key.stride + f));
        }
    write(mapped, row, rows);
    if (adds()) carry(row, rows);
  }

  void see(row_view<T> key, row_view<T> value, int64_t rows) {
    if (logs_) return;
    note_smallest(b_.range->key, key, rows, form_.features, form_.map == feature_map::elu);
    note_smallest(b_.range->value, value, rows, form_.value_dim, false);
  }

  // ---- sums over later queries -----------------------------------------------------------------

  /// Lowers the references to those of a strip, at most those of later ones: sums only shrink.
  void take_references(int64_t s) {
    const T* const at =
        adds() ? static_cast<const T*>(b_.notes.references) + s * b_.notes.columns : nullptr;
    for (int64_t f = 0; f < form_.features; ++f) {
      const double base = b_.later_base.products ? b_.later_base.reference[f] : 0;
      const double here = adds() ? static_cast<double>(at[f]) : base;
      const bool none = here == -limits<double>::infinity;
      const T shift = none ? T(0) : static_cast<T>(-here);
      stale_ = stale_ || !(shift == ws_.key_shift[f]);
      ws_.key_shift[f] = shift;
      ws_.base_factor[f] = here == base ? 1 : __builtin_exp(here - base);
      if (!adds()) continue;
      double& own = b_.later_own.reference[f];
      // Nothing to rescale before the first of them.
      ws_.own_factor[f] = here == own || !begun_ ? 1 : __builtin_exp(here - own);
    }
  }

  void narrow() {
    stale_ = false;
    const double fade = b_.decay ? fades_.since_begin() : 1;
    const bool base = b_.later_base.products != nullptr;
    for (int64_t f = 0; f < form_.features; ++f) {
      if (b_.decay) ws_.base_factor[f] = fade;
      const double total = (base ? b_.later_base.total[f] * ws_.base_factor[f] : 0.0) +
                           (adds() ? b_.later_own.total[f] * ws_.own_factor[f] : 0.0);
      ws_.factor[f] = static_cast<T>(total);
    }
    narrow_both(form_, b_.later_base.products, ws_.base_factor,
                adds() ? b_.later_own.products : nullptr, ws_.own_factor, ws_.sums);
  }

  row_view<T> exponentials(row_view<T> logs, int64_t rows) {
    map_rows<T>(logs, rows, form_.features, ws_.key, ws_.columns,
                [&](vec<T> x, int64_t f) { return natural_exp<T>(x + load(ws_.key_shift + f)); });
    clear_pads(ws_.key, rows, form_.features, ws_.columns);
    return {ws_.key, ws_.columns};
  }

  // ---- one strip -------------------------------------------------------------------------------

  void within(int64_t s, row_view<T> key, row_view<T> value, int64_t row, int64_t rows) {
    const row_view<T> grad = whole_rows(b_.grad, row, rows, form_.value_dim, ws_.grad);
    const row_view<T> query{weights(row), b_.notes.columns};
    pack_rows(value, rows, form_.value_dim, ws_.copy, ws_.panel);
    lower_products(grad, ws_.panel, form_.value_dim, rows, ws_.pairs);
    pack_rows(key, rows, form_.features, ws_.copy, ws_.keys);
    lower_products(query, ws_.keys, form_.features, rows, ws_.weights);
    if (b_.decay) decays(s, key, row, rows);
    add_upper(ws_.pairs, query, ws_.columns, rows, ws_.clean_rows, ws_.slopes);
    add_upper(ws_.weights, grad, ws_.lanes, rows, ws_.clean_rows, ws_.out);
  }

  void decays(int64_t s, row_view<T> key, int64_t row, int64_t rows) {
    const int64_t lanes = b_.notes.lanes;
    const row_view<T> before{static_cast<const T*>(b_.notes.sums) + s * form_.features * lanes,
                             lanes};
    const row_view<T> after{ws_.sums.products, ws_.lanes};
    fades_.of_pairs(ws_.weights, linear_rows, rows);
    const double passing = fades_.end() * passing_both(before, after, form_.features, ws_.lanes);
    gradients_of_decays<T>(ws_.weights, ws_.pairs, key, {ws_.slopes, ws_.columns},
                           static_cast<const T*>(b_.notes.means) + row, form_.features, rows,
                           passing, b_.decay_out + row);
    fades_.of_pairs(ws_.pairs, linear_rows, rows);
  }

  /// slopes_j -= sum over i >= j of w_i h_i.
  void subtract_means(int64_t row, int64_t rows) {
    for (int64_t r = rows - 1; r >= 0; --r)
      for (int64_t f = 0; f < ws_.columns; f += width<T>) {
        vec<T> sum = load(ws_.factor + f);
        if (adds()) {
          sum = fma(load(weights(row + r) + f), mean(row + r, f), sum);
          store(ws_.factor + f, sum);
        }
        T* const at = ws_.slopes + r * ws_.columns + f;
        store(at, load(at) - sum);
      }
  }

  void write(row_view<T> mapped, int64_t row, int64_t rows) {
    if (b_.range && !(all_finite<T>({ws_.slopes, ws_.columns}, rows, ws_.columns) &&
                      all_finite<T>({ws_.out, ws_.lanes}, rows, ws_.lanes)))
      b_.range->overflow = true;
    write_rows<T>(b_.value_out, row, rows, form_.value_dim, {ws_.out, ws_.lanes});
    const bool elements = form_.map == feature_map::turned || form_.map == feature_map::projected;
    const row_view<T> raw =
        elements ? view_rows(b_.key, row, rows, form_.head_dim, ws_.raw) : row_view<T>{};
    const double* const turn = b_.key_turn ? b_.key_turn + 2 * row : nullptr;
    write_rows(b_.key_out, row, rows, form_.head_dim,
               slopes_of_elements(form_, mapped, raw, turn, rows, ws_.slopes, ws_.spare));
  }

  /// Adds the queries of a strip, which earlier keys read, with the references of the strip.
  void carry(int64_t row, int64_t rows) {
    row_view<T> query{weights(row), b_.notes.columns};
    const row_view<T> grad = whole_rows(b_.grad, row, rows, form_.value_dim, ws_.grad);
    if (b_.decay) query = fades_.from_begin(query, rows, form_.features, ws_.faded, ws_.columns);
    const double fade = b_.decay ? fades_.end() : 1;
    for (int64_t f = 0; f < form_.features; ++f) {
      double* const sums = b_.later_own.products + f * form_.value_dim;
      const double by = ws_.own_factor[f] * fade;
      for (int64_t c = 0; by != 1 && c < form_.value_dim; ++c) sums[c] *= by;
      b_.later_own.total[f] *= by;
      if (logs_) b_.later_own.reference[f] = -static_cast<double>(ws_.key_shift[f]);
    }
    add_to_sums(query, grad, rows, form_.features, form_.value_dim, ws_.lanes, 1.0, ws_.added,
                b_.later_own.products);
    if (has_means()) add_means(row, rows);
    begun_ = stale_ = true;
  }

  void add_means(int64_t row, int64_t rows) {
    T* const sum = ws_.running;
    for (int64_t f = 0; f < ws_.columns; ++f) sum[f] = T(0);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t f = 0; f < ws_.columns; f += width<T>)
        store(sum + f, fma(load(weights(row + r) + f), mean(row + r, f), load(sum + f)));
    for (int64_t f = 0; f < form_.features; ++f)
      b_.later_own.total[f] += static_cast<double>(sum[f]);
  }

  const linear_gradient_block& b_;
  const linear_form& form_;
  linear_gradient_workspace<T> ws_;
  const bool logs_;
  row_fades<T> fades_;
  bool stale_ = true;   // the sums have changed since keys last read them
  bool begun_ = false;  // queries of a strip have been added
};

template <class T>
void linear_key_gradients(const linear_gradient_block& block) noexcept {
  arena a{static_cast<char*>(block.scratch)};
  key_gradients<T>(block, a).run();
}

}  // namespace
