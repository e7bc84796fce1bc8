// SPDX-License-Identifier: BSD-3-Clause
//
// The backward loop: for each tile of keys and each panel of queries: scores
// and weights again, the gradients of the scores, and from them those of
// queries, keys and values. The block keeps the sums of its queries; rows of
// keys and values are added to in turn (see block_turns).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/gradient/block.hpp"
#include "kernels/gradient/list_pairs-inl.hpp"
#include "kernels/gradient/lists-inl.hpp"
#include "kernels/gradient/pairs-inl.hpp"
#include "kernels/gradient/parameters-inl.hpp"
#include "kernels/gradient/products-inl.hpp"
#include "kernels/gradient/rows-inl.hpp"
#include "kernels/gradient/rules-inl.hpp"
#include "kernels/gradient/weights-inl.hpp"
#include "kernels/gradient/workspace-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/softmax/output-inl.hpp"
#include "kernels/tile/tiles-inl.hpp"
#include "kernels/tile/workspace-inl.hpp"
#include "numbers.hpp"

namespace {

template <class T>
class gradient_run {
 public:
  explicit gradient_run(const gradient_block& block)
      : b_(block), arena_{static_cast<char*>(block.scratch)}, ws_(block, arena_), walk_(block) {}

  void run() {
    prepare();
    b_.turns.pass(b_.turns.state, walk_.visible.first());
    if (has_lists(b_)) clean_ = differentiate_lists(b_, ws_, walk_);
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
    ws_.query.fill(b_.query, b_.rows, b_.head_dim, ws_.nat_scale);
    if (b_.d_factor) ws_.factor.start(b_.key_end, b_.rows);
    if (b_.d_offset) ws_.offset.start(b_.key_end, b_.rows);
    if (has_value()) ws_.grad_output.fill(b_.grad_output, b_.rows, b_.value_dim, nullptr);
    for_panels<T>(b_.rows, [&](auto count, int lane) { pack<decltype(count)::value>(lane); });
  }

  template <int N>
  void pack(int lane) {
    pack_queries<T, N>(b_, lane, ws_.tile.rows, ws_.tile.query + lane * b_.head_dim);
    const output_panel<T> out = sums<N>(lane);
    clear(out.recent, out.elements);
    if (out.total) clear(out.total, out.elements), clear(out.compensation, out.elements);
    if (has_value())
      for (int n = 0; n < N; ++n) pack_output<N>(lane, n);
  }

  /// One vector of grad_output, and its products with the output, which every
  /// score of its row has in its gradient.
  template <int N>
  void pack_output(int lane, int n) {
    const int row = lane + n * w;
    T* const panel = ws_.grad_panel + lane * b_.value_dim + n * w;
    const int left = b_.rows - row;
    pack_lanes(b_.grad_output, row, left, b_.value_dim, ws_.tile.rows, panel, N * w);
    pack_lanes(b_.output, row, left, b_.value_dim, ws_.tile.rows, ws_.output_panel + n * w, N * w);
    double product[w];
    dot_lanes(panel, ws_.output_panel + n * w, N * w, b_.value_dim, product);
    for (int r = 0; r < w && r < left; ++r) {
      b_.product[row + r] = product[r];
      if (b_.centred)
        ws_.row.constant[row + r] = static_cast<T>(b_.given->constant[row + r] - product[r]);
    }
  }

  bool has_value() const { return b_.grad_output.data != nullptr; }

  template <int N>
  output_panel<T> sums(int lane) {
    const int64_t at = lane * b_.head_dim;
    return {ws_.d_query + at, ws_.total ? ws_.total + at : nullptr,
            ws_.total ? ws_.compensation + at : nullptr, b_.head_dim * N * w};
  }

  // ---- rows with lists ----

  /// Whether pairs are all there is to do, and few.
  bool is_sparse() const {
    return clean_ && ws_.lists.pair && !ws_.slopes && !b_.d_mask && !b_.d_offset;
  }

  /// Pair by pair instead of tile by tile.
  void add_pairs() {
    for_panels<T>(b_.rows, [&](auto count, int lane) {
      add_keys_of_lists<T>(b_, ws_.lists, lane, decltype(count)::value * w,
                           ws_.d_query + lane * b_.head_dim);
    });
    sort_by_key(b_, ws_.lists);
    walk_.for_tiles([&](const key_tile& at) {
      if (!take_turn(at)) return;
      add_pairs_of_keys(b_, ws_, at);
      b_.turns.pass(b_.turns.state, at.key + at.keys);
    });
  }

  // ---- tiles ----

  T* weights(int lane) const { return ws_.weights + lane * max_tile_keys; }
  T* gradients(int lane) const { return ws_.gradients + lane * max_tile_keys; }

  row_view<T> values(const key_tile& at) const {
    if (!has_value()) return {nullptr, 0};
    return view_rows(b_.value, at.key, at.keys, b_.value_dim, ws_.value_copy);
  }

  prefetcher prefetch(const matrix& m, int64_t columns, const key_tile& at) const {
    return {m.data, m.layout, at.key, at.keys, columns};
  }
  prefetcher prefetch_gradient(const void* data, ptrdiff_t row, int64_t columns,
                               const key_tile& at) const {
    return {data, {native<T>, row, 1}, at.key, at.keys, columns};
  }

  /// A tile whose keys all rows see.
  void tile(const key_tile& at) {
    const row_view<T> k = ws_.tile.keys(b_, at), v = values(at);
    query_part<T> of_values[gradient_block_rows<T>], of_keys[gradient_block_rows<T>];
    int parts = 0;
    bool seen[gradient_block_rows<T>] = {};  // of panels, by their first vector
    for_panels<T>(b_.rows, [&](auto count, int lane) {
      constexpr int N = decltype(count)::value, lanes = N * w;
      seen[lane / w] =
          has_lists(b_) ? fill_lists<N>(lane, at) : differentiate_tile<N>(lane, at, k, v);
      if (!seen[lane / w]) return;
      if (b_.at_top) add_at_top<T, N>(b_, lane, at, gradients(lane));
      of_values[parts] = {weights(lane), lanes,
                          ws_.grad_output.rows + lane * ws_.grad_output.stride, lanes};
      of_keys[parts++] = {gradients(lane), lanes, ws_.query.rows + lane * ws_.query.stride, lanes};
    });
    if (!take_turn(at)) return;
    add_to_values(of_values, parts, at.key, at.keys, ws_.grad_output.stride,
                  prefetch_gradient(b_.d_key, b_.d_key_row, b_.head_dim, at));
    add_to_keys(of_keys, parts, at.key, at.keys, ws_.query.stride,
                prefetch(b_.key, b_.head_dim, {at.key + at.keys, at.keys, false}));
    b_.turns.pass(b_.turns.state, at.key + at.keys);
    for_panels<T>(b_.rows, [&](auto count, int lane) {
      constexpr int N = decltype(count)::value;
      if (seen[lane / w])
        add_weighted_values<T, N>(k, at.keys, gradients(lane), N * w, b_.head_dim,
                                  sums<N>(lane).recent);
    });
    carry_on();
  }

  /// Weights and gradients of the scores of a panel.
  template <int N>
  bool differentiate_tile(int lane, const key_tile& at, row_view<T> k, row_view<T> v) {
    plain_products<T, N>(k, at.keys, ws_.tile.query + lane * b_.head_dim, N * w, b_.head_dim,
                         weights(lane), prefetch(b_.value, b_.value_dim, at));
    multiply_values<N>(lane, 0, at.keys, v, 0, N,
                       prefetch_gradient(b_.d_value, b_.d_value_row, b_.value_dim, at));
    with_gradient(b_.rule, b_.terms, [&](auto rule) {
      differentiate<T, N, decltype(rule)>(ws_.row.at(lane), at.keys, weights(lane),
                                          gradients(lane));
    });
    if (b_.d_bias)
      add_over_keys<T, N>(keys_in_tile<T, N>(b_, at, lane), gradients(lane), b_.d_bias + lane);
    return true;
  }

  template <int N>
  bool fill_lists(int lane, const key_tile& at) {
    return fill_from_lists<T, N>(b_, ws_.lists, ws_.row.at(lane), lane, at, weights(lane),
                                 gradients(lane));
  }

  /// A tile with a bias: panel by panel, strip by strip.
  void masked_tile(const key_tile& at) {
    const row_view<T> k = ws_.tile.keys(b_, at), v = values(at);
    for_panels<T>(b_.rows, [&](auto count, int lane) {
      if (!lost_) masked_panel<decltype(count)::value>(lane, at, k, v);
    });
    if (!lost_) b_.turns.pass(b_.turns.state, at.key + at.keys);
    carry_on();
  }

  template <int N>
  void masked_panel(int lane, const key_tile& at, row_view<T> k, row_view<T> v) {
    tile_products<T, N> t;
    T* const ds = gradients(lane);
    if (!look_at_tile<T, N>(b_, ws_.tile, at, lane, t)) return;
    differentiate_masked<N>(lane, at, k, v, t);
    if (b_.at_top) add_at_top<T, N>(b_, lane, at, ds);
    if (b_.d_offset) add_by_distance<T, N>(b_, ws_, lane, at, t.seen, ds, ws_.offset);
    if (!take_turn(at)) return;
    if (b_.d_mask) add_to_mask<T, N>(b_, ws_, lane, at, t.seen, ds);
    if (ws_.slopes) through_form<N>(lane, at, t.seen, ds);
    add_strips<N>(lane, at, t);
    k = isolate_nonfinite<T, N>(k, at.keys, b_.head_dim, t.seen, ws_.tile.bias, ds,
                                sums<N>(lane).recent, ws_.key_clean);
    for (int i = 0; i < t.n_strips; ++i) add_to_queries(t.strips[i], k, ds, N * w, lane);
  }

  template <int N>
  void differentiate_masked(int lane, const key_tile& at, row_view<T> k, row_view<T> v,
                            const tile_products<T, N>& t) {
    T* const p = weights(lane);
    T* const ds = gradients(lane);
    if (!has_lists(b_) || ws_.slopes) multiply_biased<N>(lane, at, k, v, t);
    if (has_lists(b_)) {
      find_slopes<T, N>(ws_.row.at(lane), t.seen, b_.form, ws_.tile.bias, p, ws_.slopes);
      fill_lists<N>(lane, at);
      return hide<T, N>(t.seen, ws_.tile.bias, p, ds);
    }
    with_gradient(b_.rule, b_.terms, [&](auto rule) {
      differentiate_biased<T, N, decltype(rule)>(ws_.row.at(lane), t.seen, b_.form, ws_.tile.bias,
                                                 p, ds, ws_.slopes);
    });
    if (b_.d_bias) add_over_keys<T, N>(t.seen, ds, b_.d_bias + lane);
  }

  /// Gradients of weights: grad_output . value for keys [begin, end) and some
  /// vectors of a panel.
  template <int N>
  void multiply_values(int lane, int begin, int end, row_view<T> v, int first, int last,
                       prefetcher ahead = {}) {
    T* const out = gradients(lane) + begin * N * w + first * w;
    if (!has_value()) {
      for (int i = 0; i < (end - begin) * N * w; i += w) store(out + i, broadcast(T(0)));
      return;
    }
    const T* const panel = ws_.grad_panel + lane * b_.value_dim + first * w;
    with_vectors(last - first, [&](auto count) {
      plain_products<T, decltype(count)::value>({v.data + begin * v.stride, v.stride}, end - begin,
                                                panel, N * w, b_.value_dim, out, ahead);
    });
  }

  /// From gradients of scores to those of scaled products.
  template <int N>
  void through_form(int lane, const key_tile& at, const vector_keys<N>& seen, T* ds) {
    multiply_seen<T, N>(seen, ws_.slopes, ds);
    if (!b_.tables.factor.data) return;
    if (b_.d_factor) add_to_factor<T, N>(b_, ws_, lane, at, seen, ds);
    fill_distance_panel<T, N>(b_.tables.factor, b_.rows, lane, at.key, at.keys, ws_.tile.rows,
                              ws_.tile.table);
    multiply_seen<T, N>(seen, ws_.tile.table, ds);
  }

  /// Raw products of a biased tile, with its tables, and gradients of its weights.
  template <int N>
  void multiply_biased(int lane, const key_tile& at, row_view<T> k, row_view<T> v,
                       const tile_products<T, N>& t) {
    for (int i = 0; i < t.n_strips && !has_lists(b_); ++i)
      multiply_values<N>(lane, t.strips[i].begin, t.strips[i].end, v, t.strips[i].first,
                         t.strips[i].last);
    constexpr int lanes = N * w;
    T* const raw = weights(lane);
    for (int i = 0; i < t.n_strips; ++i)
      multiply_strip(t.strips[i], k, ws_.tile.query + lane * b_.head_dim, lanes, b_.head_dim, raw);
    if (ws_.plain)
      for (int i = 0; i < at.keys * lanes; i += w) store(ws_.plain + i, load(raw + i));
    if (has_distance_tables(b_))
      apply_distance_tables<T, N>(b_, lane, at.key, at.keys, ws_.tile.rows, ws_.tile.table, raw,
                                  ws_.tile.bias);
  }

  template <int N>
  void add_strips(int lane, const key_tile& at, const tile_products<T, N>& t) {
    constexpr int lanes = N * w;
    for (int i = 0; i < t.n_strips; ++i) {
      const strip& s = t.strips[i];
      const int first = lane + s.first * w, queries = (s.last - s.first) * w;
      const int from = s.begin * lanes + s.first * w;
      const query_part<T> p{weights(lane) + from, lanes,
                            ws_.grad_output.safe() + first * ws_.grad_output.stride, queries};
      const query_part<T> ds{gradients(lane) + from, lanes,
                             ws_.query.safe() + first * ws_.query.stride, queries};
      add_to_values(&p, 1, at.key + s.begin, s.end - s.begin, ws_.grad_output.stride);
      add_to_keys(&ds, 1, at.key + s.begin, s.end - s.begin, ws_.query.stride);
    }
    if (has_value())
      add_nonfinite_rows<T, N>(ws_.grad_output, lane, b_.rows, b_.value_dim, t.seen, ws_.tile.bias,
                               weights(lane), rows_at<T>(b_.d_value, b_.d_value_row, at.key),
                               b_.d_value_row);
    add_nonfinite_rows<T, N>(ws_.query, lane, b_.rows, b_.head_dim, t.seen, ws_.tile.bias,
                             gradients(lane), rows_at<T>(b_.d_key, b_.d_key_row, at.key),
                             b_.d_key_row);
  }

  void add_to_values(const query_part<T>* parts, int n, int64_t key, int keys, ptrdiff_t stride,
                     prefetcher ahead = {}) {
    if (has_value())
      add_over_queries<T>(parts, n, keys, b_.value_dim, stride,
                          rows_at<T>(b_.d_value, b_.d_value_row, key), b_.d_value_row, ahead);
  }

  void add_to_keys(const query_part<T>* parts, int n, int64_t key, int keys, ptrdiff_t stride,
                   prefetcher ahead = {}) {
    add_over_queries<T>(parts, n, keys, b_.head_dim, stride,
                        rows_at<T>(b_.d_key, b_.d_key_row, key), b_.d_key_row, ahead);
  }

  void add_to_queries(const strip& s, row_view<T> k, const T* ds, ptrdiff_t lanes, int lane) {
    T* const out = ws_.d_query + lane * b_.head_dim + s.first * w;
    with_vectors(s.last - s.first, [&](auto count) {
      add_weighted_values<T, decltype(count)::value>(
          {k.data + s.begin * k.stride, k.stride}, s.end - s.begin,
          ds + s.begin * lanes + s.first * w, lanes, b_.head_dim, out);
    });
  }

  bool take_turn(const key_tile& at) {
    if (b_.turns.wait(b_.turns.state, at.key + at.keys)) return true;
    lost_ = true;
    walk_.end();
    return false;
  }

  void carry_on() {
    if (ws_.total && ++tiles_ % tiles_per_carry == 0)
      for_panels<T>(b_.rows,
                    [&](auto count, int lane) { carry(sums<decltype(count)::value>(lane)); });
  }

  // ---- after the tiles ----

  void finish() {
    const bool shares = b_.shares_query || b_.d_factor || b_.d_offset || shares_mask(b_);
    if (shares && !b_.turns.wait(b_.turns.state, INT64_MAX)) return;
    for (int r = 0; shares_mask(b_) && r < b_.rows; ++r)
      *rows_at<T>(b_.d_mask, b_.d_mask_row, r) += ws_.mask_sums[r];
    if (b_.d_factor) ws_.factor.add_to(static_cast<T*>(b_.d_factor));
    if (b_.d_offset) ws_.offset.add_to(static_cast<T*>(b_.d_offset));
    for_panels<T>(b_.rows, [&](auto count, int lane) {
      constexpr int N = decltype(count)::value;
      gather(sums<N>(lane));
      for (int n = 0; n < N; ++n) write_queries<N>(lane, n);
    });
    b_.turns.pass(b_.turns.state, INT64_MAX);
  }

  template <int N>
  void write_queries(int lane, int n) {
    const int row = lane + n * w, rows = b_.rows - row < w ? b_.rows - row : w;
    if (rows <= 0) return;
    const T* const panel = ws_.d_query + lane * b_.head_dim + n * w;
    const T* const query = ws_.tile.query + lane * b_.head_dim + n * w;
    double product[w];
    dot_lanes(query, panel, N * w, b_.head_dim, product);
    for (int r = 0; r < rows; ++r) b_.d_scale[row + r] = product[r];
    T* const out = rows_at<T>(b_.d_query, b_.d_query_row, row);
    const vec<T> scale = load(ws_.nat_scale + row);
    if (!b_.shares_query)
      return lanes_to_rows(panel, N * w, b_.head_dim, scale, rows, out, b_.d_query_row);
    lanes_to_rows(panel, N * w, b_.head_dim, scale, rows, ws_.tile.rows, b_.head_dim);
    for (int r = 0; r < rows; ++r)
      for (int64_t c = 0; c < b_.head_dim; ++c)
        out[r * b_.d_query_row + c] += ws_.tile.rows[r * b_.head_dim + c];
  }

  const gradient_block& b_;
  arena arena_;
  gradient_workspace<T> ws_;
  tile_walk walk_;
  const bool biased_ = changes_scores(b_.form);
  int64_t tiles_ = 0;
  bool clean_ = true;  ///< no row with a list is NaN
  bool lost_ = false;  ///< its turn never came: the call ends
};

template <class T>
size_t gradient_scratch(const gradient_block& block) {
  arena a{nullptr};
  gradient_workspace<T> unused(block, a);
  return a.used;
}

template <class T>
void gradient(const gradient_block& block) noexcept {
  gradient_run<T>(block).run();
}

}  // namespace
