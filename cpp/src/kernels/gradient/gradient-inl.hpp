// SPDX-License-Identifier: BSD-3-Clause
//
// The backward loop. For each tile of keys and each panel of queries it recomputes scores and
// weights, then the gradients of the scores, and from them those of queries, keys and values. The
// block keeps the sums of its queries; rows of keys and values are added to in turn (see
// turn_hooks).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/gradient/block.hpp"
#include "kernels/gradient/list_pairs-inl.hpp"
#include "kernels/gradient/lists-inl.hpp"
#include "kernels/gradient/pairs-inl.hpp"
#include "kernels/gradient/panel_rows-inl.hpp"
#include "kernels/gradient/parameters-inl.hpp"
#include "kernels/gradient/products-inl.hpp"
#include "kernels/gradient/queries-inl.hpp"
#include "kernels/gradient/received-inl.hpp"
#include "kernels/gradient/rows-inl.hpp"
#include "kernels/gradient/rules-inl.hpp"
#include "kernels/gradient/weights-inl.hpp"
#include "kernels/gradient/workspace-inl.hpp"
#include "kernels/numbers.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/softmax/output-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"

namespace {

template <class T, class Pairs>
struct gradient_scratch {
  Pairs pairs;
  gradient_workspace<T> own;

  gradient_scratch(const gradient_block& b, arena& a)
      : pairs(b, a), own(b, a, Pairs::spare_keys, Pairs::sum_rows(b)) {}
};

/// Pairs: widened_products, or bfloat16_products for bfloat16 products besides the float ones.
template <class T, class Pairs>
class gradient_run {
 public:
  explicit gradient_run(const gradient_block& block)
      : b_(block),
        arena_{static_cast<char*>(block.scratch)},
        scratch_(block, arena_),
        walk_(block) {}

  void run() {
    prepare();
    b_.turns.pass(b_.turns.state, walk_.visible.first());
    if (has_lists(b_))
      clean_ = has_panels(b_) ? differentiate_panels(b_, ws_, walk_)
                              : differentiate_lists(b_, ws_, walk_);
    if (walk_.stopped) return;
    if (is_sparse())
      add_pairs();
    else
      walk_.for_tiles(
          [&](const key_tile& at) { at.masked || biased_ ? masked_tile(at) : tile(at); });
    if (!walk_.stopped && !lost_) finish();
  }

 private:
  static constexpr int w = width<T>;

  // ---- before the tiles ----

  void prepare() {
    ws_.read_rows(b_);
    if constexpr (Pairs::has_pairs) pairs_.prepare();
    ws_.query.fill(b_.query, b_.rows, b_.head_dim, ws_.nat_scale);
    if (b_.d_distance_scale) ws_.distance_scale.start(b_.key_end, b_.rows);
    if (b_.d_distance_bias) ws_.distance_bias.start(b_.key_end, b_.rows);
    if (has_value()) ws_.grad_output.fill(b_.grad_output, b_.rows, b_.value_dim, nullptr);
    for_panels<T>(b_.rows, [&](query_panel panel) { pack(panel); });
  }

  void pack(query_panel panel) {
    pack_queries(b_, panel, ws_.tile.rows, ws_.tile.query + panel.lane * b_.head_dim);
    const output_panel<T> out = sums(panel);
    clear(out.recent, out.elements);
    if (out.total) clear(out.total, out.elements), clear(out.compensation, out.elements);
    if (has_value())
      for (int n = 0; n < panel.vectors; ++n) pack_output(b_, ws_, panel, n);
  }

  bool has_value() const { return b_.grad_output.data != nullptr; }
  bool receives() const { return b_.received.sum || b_.received.largest; }

  output_panel<T> sums(query_panel panel) {
    const int64_t at = panel.lane * ws_.sum_rows;
    return {ws_.d_query + at, ws_.total ? ws_.total + at : nullptr,
            ws_.total ? ws_.compensation + at : nullptr, b_.head_dim * panel.vectors * w};
  }

  // ---- rows with lists ----

  /// Whether only pairs are to be processed, and they are few.
  bool is_sparse() const {
    return clean_ && ws_.lists.pair && !ws_.slopes && !b_.d_attn_mask.data && !b_.d_distance_bias &&
           !receives();
  }

  /// Adds gradients pair by pair instead of tile by tile.
  void add_pairs() {
    for_panels<T>(b_.rows, [&](query_panel panel) {
      add_keys_of_lists<T>(b_, ws_.lists, panel.lane, panel.vectors * w, sums(panel).recent);
    });
    sort_by_key(b_, ws_.lists);
    walk_.for_tiles([&](const key_tile& at) {
      if (!take_turn(at)) return;
      add_pairs_of_keys(b_, ws_, at);
      b_.turns.pass(b_.turns.state, at.key + at.keys);
    });
  }

  // ---- tiles ----

  T* weights(int lane) const { return ws_.weights + lane * ws_.panel_keys; }
  T* gradients(int lane) const { return ws_.gradients + lane * ws_.panel_keys; }

  row_view<T> values(const key_tile& at) const {
    if (!has_value()) return {nullptr, 0};
    return view_rows(b_.value, at.key, at.keys, b_.value_dim, ws_.value_copy);
  }

  prefetcher prefetch(const matrix& m, int64_t columns, const key_tile& at) const {
    return {m.data, m.layout, at.key, at.keys, columns};
  }
  prefetcher prefetch_gradient(const gradient_place& to, int64_t columns,
                               const key_tile& at) const {
    return {to.data, {native<T>, to.row, 1}, at.key, at.keys, columns};
  }

  /// A tile without hidden pairs.
  void tile(const key_tile& at) {
    if (receives()) return received_tile(at);
    if constexpr (Pairs::has_pairs)
      paired_tile(at);
    else
      widened_tile(at);
    carry_on();
  }

  /// Weights only, for received weights.
  void received_tile(const key_tile& at) {
    const row_view<T> k = Pairs::has_pairs ? row_view<T>{nullptr, 0} : ws_.tile.keys(b_, at);
    for_panels<T>(b_.rows, [&](query_panel panel) {
      if constexpr (Pairs::has_pairs)
        weigh_pairs(panel, at);
      else if (has_lists(b_))
        fill_lists(panel, at);
      else
        differentiate_tile(panel, at, k, {nullptr, 0});
    });
    if (!take_turn(at)) return;
    for_panels<T>(b_.rows, [&](query_panel panel) {
      add_received(keys_in_tile<T>(b_, at, panel), weights(panel.lane), b_.received, at.key);
    });
    b_.turns.pass(b_.turns.state, at.key + at.keys);
  }

  /// Weights and gradients of the scores of a panel, with Pairs' products.
  void weigh_pairs(query_panel panel, const key_tile& at) {
    const strip all{0, at.keys, 0, panel.vectors};
    pairs_.scores(panel, at, &all, 1, weights(panel.lane));
    if (has_value())
      pairs_.weight_gradients(panel, at, gradients(panel.lane));
    else
      multiply_values(b_, ws_, panel, all, {nullptr, 0});
    differentiate_scores(panel, at);
  }

  /// A tile of bfloat16 arrays without hidden pairs.
  void paired_tile(const key_tile& at) {
    for_panels<T>(b_.rows, [&](query_panel panel) {
      const int lane = panel.lane;
      weigh_pairs(panel, at);
      if (b_.at_top) add_at_top(b_, panel, at, gradients(lane));
      pairs_.round(panel, at.keys, weights(lane), ws_.nat_scale + lane, gradients(lane));
    });
    if (!take_turn(at)) return;
    if (has_value()) pairs_.add_to_values(at.keys, rows_at<T>(b_.d_value, at.key), b_.d_value.row);
    pairs_.add_to_keys(at.keys, rows_at<T>(b_.d_key, at.key), b_.d_key.row);
    b_.turns.pass(b_.turns.state, at.key + at.keys);
    pairs_.read_keys(at);
    for_panels<T>(b_.rows, [&](query_panel panel) {
      pairs_.add_to_queries(panel, at, gradients(panel.lane), sums(panel).recent);
    });
  }

  void widened_tile(const key_tile& at) {
    const row_view<T> k = ws_.tile.keys(b_, at), v = values(at);
    query_part<T> of_values[gradient_block_rows<T>], of_keys[gradient_block_rows<T>];
    int parts = 0;
    bool seen[gradient_block_rows<T>] = {};  // per panel, by its first vector
    for_panels<T>(b_.rows, [&](query_panel panel) {
      const int lane = panel.lane, lanes = panel.vectors * w;
      seen[lane / w] = has_lists(b_) ? fill_lists(panel, at) : differentiate_tile(panel, at, k, v);
      if (!seen[lane / w]) return;
      if (b_.at_top) add_at_top(b_, panel, at, gradients(lane));
      of_values[parts] = {weights(lane), lanes,
                          ws_.grad_output.rows + lane * ws_.grad_output.stride, lanes};
      of_keys[parts++] = {gradients(lane), lanes, ws_.query.rows + lane * ws_.query.stride, lanes};
    });
    if (!take_turn(at)) return;
    add_to_values(b_, of_values, parts, at.key, at.keys, ws_.grad_output.stride,
                  prefetch_gradient(b_.d_key, b_.head_dim, at));
    add_to_keys(b_, of_keys, parts, at.key, at.keys, ws_.query.stride,
                prefetch(b_.key, b_.head_dim, {at.key + at.keys, at.keys, false}));
    b_.turns.pass(b_.turns.state, at.key + at.keys);
    for_panels<T>(b_.rows, [&](query_panel panel) {
      if (seen[panel.lane / w])
        add_weighted_values(k, at.keys, panel.vectors, gradients(panel.lane), panel.vectors * w,
                            b_.head_dim, sums(panel).recent);
    });
  }

  /// Weights and gradients of the scores of a panel.
  bool differentiate_tile(query_panel panel, const key_tile& at, row_view<T> k, row_view<T> v) {
    const int lane = panel.lane, vectors = panel.vectors;
    plain_products(k, at.keys, vectors, ws_.tile.query + lane * b_.head_dim, vectors * w,
                   b_.head_dim, weights(lane), prefetch(b_.value, b_.value_dim, at));
    multiply_values(b_, ws_, panel, {0, at.keys, 0, vectors}, v,
                    prefetch_gradient(b_.d_value, b_.value_dim, at));
    differentiate_scores(panel, at);
    return true;
  }

  /// From products and gradients of weights to weights and gradients of scores.
  void differentiate_scores(query_panel panel, const key_tile& at) {
    const int lane = panel.lane;
    with_gradient<T>(b_.rule, b_.terms, [&]<class Backward> {
      differentiate<Backward>(ws_.row.at(lane), panel.vectors, at.keys,
                              ws_.heavy(b_, panel, at.key), weights(lane), gradients(lane));
    });
    if (b_.d_bias) add_over_keys(keys_in_tile<T>(b_, at, panel), gradients(lane), b_.d_bias + lane);
  }

  bool fill_lists(query_panel panel, const key_tile& at) {
    const int lane = panel.lane;
    const gradient_lanes<T> row = ws_.row.at(lane);
    if (has_panels(b_))
      return fill_from_panels(b_, ws_.lists, row, panel, at, weights(lane), gradients(lane));
    return fill_from_lists(b_, ws_.lists, row, panel, at, weights(lane), gradients(lane));
  }

  /// A tile with a bias, panel by panel, strip by strip.
  void masked_tile(const key_tile& at) {
    const row_view<T> k = ws_.tile.keys(b_, at), v = values(at);
    for_panels<T>(b_.rows, [&](query_panel panel) {
      if (!lost_) masked_panel(panel, at, k, v);
    });
    if (!lost_) b_.turns.pass(b_.turns.state, at.key + at.keys);
    carry_on();
  }

  void masked_panel(query_panel panel, const key_tile& at, row_view<T> k, row_view<T> v) {
    tile_products<T> t;
    const int lane = panel.lane;
    T* const ds = gradients(lane);
    if (!look_at_tile(b_, ws_.tile, at, panel, t)) return;
    differentiate_masked(panel, at, k, v, t);
    if (receives()) {
      if (take_turn(at)) add_received(t.seen, weights(lane), b_.received, at.key);
      return;
    }
    if (b_.at_top) add_at_top(b_, panel, at, ds);
    if (b_.d_distance_bias) add_by_distance(b_, ws_, lane, at, t.seen, ds, ws_.distance_bias);
    if (!take_turn(at)) return;
    if (b_.d_attn_mask.data) add_to_mask(b_, ws_, lane, at, t.seen, ds);
    if (ws_.slopes) through_form(panel, at, t.seen, ds);
    add_strips(panel, at, t);
    k = isolate_nonfinite(k, at.keys, b_.head_dim, t.seen, ws_.tile.bias, ds, sums(panel).recent,
                          ws_.key_clean);
    for (int i = 0; i < t.n_strips; ++i)
      add_to_queries(t.strips[i], k, ds, panel.vectors * w, lane);
  }

  void differentiate_masked(query_panel panel, const key_tile& at, row_view<T> k, row_view<T> v,
                            const tile_products<T>& t) {
    const int lane = panel.lane;
    T* const p = weights(lane);
    T* const ds = gradients(lane);
    if (!has_lists(b_) || ws_.slopes) multiply_biased(panel, at, k, v, t);
    if (has_lists(b_)) {
      find_slopes(ws_.row.at(lane), t.seen, b_.form, ws_.tile.bias, p, ws_.slopes);
      fill_lists(panel, at);
      return hide(t.seen, ws_.tile.bias, p, ds);
    }
    with_gradient<T>(b_.rule, b_.terms, [&]<class Backward> {
      differentiate_biased<Backward>(ws_.row.at(lane), t.seen, b_.form,
                                     ws_.heavy(b_, panel, at.key), ws_.tile.bias, p, ds,
                                     ws_.slopes);
    });
    if (b_.d_bias) add_over_keys(t.seen, ds, b_.d_bias + lane);
  }

  /// From gradients of scores to gradients of scaled products.
  void through_form(query_panel panel, const key_tile& at, const vector_keys& seen, T* ds) {
    multiply_seen(seen, ws_.slopes, ds);
    if (!b_.tables.distance_scale.data) return;
    if (b_.d_distance_scale) add_to_distance_scale(b_, ws_, panel.lane, at, seen, ds);
    fill_distance_panel(b_.tables.distance_scale, b_.rows, panel, at.key, at.keys, ws_.tile.rows,
                        ws_.tile.table);
    multiply_seen(seen, ws_.tile.table, ds);
  }

  /// Raw products of a biased tile, with its tables, and the gradients of its weights.
  void multiply_biased(query_panel panel, const key_tile& at, row_view<T> k, row_view<T> v,
                       const tile_products<T>& t) {
    const int lane = panel.lane, lanes = panel.vectors * w;
    for (int i = 0; i < t.n_strips && !has_lists(b_); ++i)
      multiply_values(b_, ws_, panel, t.strips[i], v);
    T* const raw = weights(lane);
    if constexpr (Pairs::has_pairs)
      pairs_.scores(panel, at, t.strips, t.n_strips, raw);
    else
      for (int i = 0; i < t.n_strips; ++i)
        multiply_strip(t.strips[i], k, ws_.tile.query + lane * b_.head_dim, lanes, b_.head_dim,
                       raw);
    if (ws_.plain)
      for (int i = 0; i < at.keys * lanes; i += w) store(ws_.plain + i, load(raw + i));
    if (has_distance_tables(b_))
      apply_distance_tables(b_, panel, at.key, at.keys, ws_.tile.rows, ws_.tile.table, raw,
                            ws_.tile.bias);
  }

  void add_strips(query_panel panel, const key_tile& at, const tile_products<T>& t) {
    const int lane = panel.lane, lanes = panel.vectors * w;
    for (int i = 0; i < t.n_strips; ++i) {
      const strip& s = t.strips[i];
      const int first = lane + s.first * w, queries = (s.last - s.first) * w;
      const int from = s.begin * lanes + s.first * w;
      const query_part<T> p{weights(lane) + from, lanes,
                            ws_.grad_output.safe() + first * ws_.grad_output.stride, queries};
      const query_part<T> ds{gradients(lane) + from, lanes,
                             ws_.query.safe() + first * ws_.query.stride, queries};
      add_to_values(b_, &p, 1, at.key + s.begin, s.end - s.begin, ws_.grad_output.stride);
      add_to_keys(b_, &ds, 1, at.key + s.begin, s.end - s.begin, ws_.query.stride);
    }
    if (has_value())
      add_nonfinite_rows(ws_.grad_output, lane, b_.rows, b_.value_dim, t.seen, ws_.tile.bias,
                         weights(lane), rows_at<T>(b_.d_value, at.key), b_.d_value.row);
    add_nonfinite_rows(ws_.query, lane, b_.rows, b_.head_dim, t.seen, ws_.tile.bias,
                       gradients(lane), rows_at<T>(b_.d_key, at.key), b_.d_key.row);
  }

  void add_to_queries(const strip& s, row_view<T> k, const T* ds, ptrdiff_t lanes, int lane) {
    T* const out = ws_.d_query + lane * ws_.sum_rows + s.first * w;
    add_weighted_values<T>({k.data + s.begin * k.stride, k.stride}, s.end - s.begin,
                           s.last - s.first, ds + s.begin * lanes + s.first * w, lanes, b_.head_dim,
                           out);
  }

  bool take_turn(const key_tile& at) {
    if (b_.turns.wait(b_.turns.state, at.key + at.keys)) return true;
    lost_ = true;
    walk_.end();
    return false;
  }

  void carry_on() {
    if (ws_.total && ++tiles_ % tiles_per_carry == 0)
      for_panels<T>(b_.rows, [&](query_panel panel) { carry(sums(panel)); });
  }

  // ---- after the tiles ----

  void finish() {
    if (receives()) return b_.turns.pass(b_.turns.state, INT64_MAX);
    const bool shares =
        b_.shares_query || b_.d_distance_scale || b_.d_distance_bias || shares_mask(b_);
    if (shares && !b_.turns.wait(b_.turns.state, INT64_MAX)) return;
    for (int r = 0; shares_mask(b_) && r < b_.rows; ++r)
      *rows_at<T>(b_.d_attn_mask, r) += ws_.mask_sums[r];
    if (b_.d_distance_scale) ws_.distance_scale.add_to(static_cast<T*>(b_.d_distance_scale));
    if (b_.d_distance_bias) ws_.distance_bias.add_to(static_cast<T*>(b_.d_distance_bias));
    for_panels<T>(b_.rows, [&](query_panel panel) {
      gather(sums(panel));
      for (int n = 0; n < panel.vectors; ++n)
        write_queries(b_, ws_, panel, n, sums(panel).recent + n * w);
    });
    b_.turns.pass(b_.turns.state, INT64_MAX);
  }

  const gradient_block& b_;
  arena arena_;
  gradient_scratch<T, Pairs> scratch_;
  gradient_workspace<T>& ws_ = scratch_.own;
  Pairs& pairs_ = scratch_.pairs;
  tile_walk walk_;
  const bool biased_ = changes_scores(b_.form);
  int64_t tiles_ = 0;
  bool clean_ = true;  ///< no row with a list is NaN
  bool lost_ = false;  ///< waiting for the turn failed: the call ends
};

}  // namespace
