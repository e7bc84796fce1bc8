// SPDX-License-Identifier: BSD-3-Clause
//
// Packed documents, tables of the distance and normalised rows: against the oracle, and against
// equivalent calls.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attnscale/attention.hpp"
#include "compare.hpp"

namespace test_call_options {

using attnscale::attention;
using attnscale::attention_entropy;
using attnscale::attention_options;
using attnscale::causal_alignment;
using attnscale::row_norm;
using attnscale::unbounded;
using namespace testing;
namespace laws = attnscale::laws;

namespace {

using integers = xt::xarray<std::int64_t>;
using numbers = xt::xarray<double>;

/// Visible keys of query i, aligned with key i + offset: those of its document within the window.
oracle::bool_matrix of_documents(const integers& ids, std::size_t n_queries, long offset, long left,
                                 long right, long length) {
  oracle::bool_matrix seen = xt::zeros<bool>({n_queries, ids.size()});
  for (long i = 0; i < long(n_queries); ++i)
    for (long j = 0; j < length; ++j) {
      const long at = i + offset;
      seen(std::size_t(i), std::size_t(j)) = at >= 0 &&
                                             ids(std::size_t(at)) == ids(std::size_t(j)) &&
                                             j >= at - left && j <= at + right;
    }
  return seen;
}

/// Distance of query i and key j, aligned with key i + offset.
numbers distances(std::size_t n_queries, std::size_t n_keys, double offset = 0) {
  numbers result = xt::zeros<double>({n_queries, n_keys});
  for (std::size_t i = 0; i < n_queries; ++i)
    for (std::size_t j = 0; j < n_keys; ++j) result(i, j) = double(i) + offset - double(j);
  return result;
}

double farthest(const auto& a, const auto& b) {
  return a.size() ? xt::amax(xt::abs(a - b))() : 0.0;
}

std::string refusal_of(const attention_options& options, const shape_type& query = {2, 3, 5, 4},
                       const shape_type& key = {2, 3, 5, 4}) {
  const xt::xarray<float> q = xt::zeros<float>(query), k = xt::zeros<float>(key);
  return refusal([&] { attention_entropy(q, k, options); });
}

}  // namespace

TEST_CASE("documents: a query sees the keys of its own within every other mask") {
  const integers ids{7, 7, 7, -1, 4, 4, 4, 4, 4, 9};
  const long open = 1000;
  for_both_types([&](auto zero) {
    const inputs<decltype(zero)> in(10, 10, 5, 3);
    auto s = in.setting();
    s.visible = of_documents(ids, 10, 0, open, open, 10);
    check_call(in, {.document_ids = ids}, s);
    s.visible = of_documents(ids, 10, 0, open, 0, 10);
    check_call(in, {.is_causal = true, .document_ids = ids}, s);
    s.visible = of_documents(ids, 10, 0, 2, 1, 6);
    check_call(in, {.window = {2, 1}, .key_lengths = 6, .document_ids = ids}, s);
    const inputs<decltype(zero)> last(4, 10, 5, 3);
    auto of_last = last.setting();
    of_last.visible = of_documents(ids, 4, 6, open, 0, 10);
    check_call(last, {.causal = causal_alignment::bottom_right, .document_ids = ids}, of_last);
    of_last.visible = of_documents(ids, 4, -2, open, 0, 8);
    check_call(last,
               {.causal = causal_alignment::offset,
                .causal_offset = -2,
                .key_lengths = 8,
                .document_ids = ids},
               of_last);
  });
}

TEST_CASE("documents: each as if it had its own call, laws too, in each entry of a batch") {
  const auto q = normal<double>({2, 3, 9, 4}, 1), k = normal<double>({2, 3, 9, 4}, 2);
  const integers ids{{1, 1, 1, 1, 2, 2, 2, 2, 2}, {5, 5, 6, 6, 6, 6, 6, 7, 7}};
  const std::vector<std::vector<std::size_t>> ends{{0, 4, 9}, {0, 2, 7, 9}};
  for (const attnscale::scale_law& law :
       {attnscale::scale_law(laws::log_n{}), attnscale::scale_law(laws::natural_log_n{}),
        attnscale::scale_law(laws::asentmax{1, 0.5, 2}), attnscale::scale_law(laws::constant{0.3}),
        attnscale::scale_law(laws::scale_invariant{2})}) {
    const auto all =
        attention_entropy(q, k, {.scale = law, .is_causal = true, .document_ids = ids});
    for (std::size_t b = 0; b < 2; ++b)
      for (std::size_t d = 1; d < ends[b].size(); ++d) {
        const auto part = [&](const auto& array) {
          return xt::view(array, b, xt::all(), xt::range(ends[b][d - 1], ends[b][d]));
        };
        const auto alone = attention_entropy(part(q), part(k), {.scale = law, .is_causal = true});
        CHECK(farthest(part(all), alone) < 1e-14);
      }
  }
  const auto one = attention_entropy(q, k, {.document_ids = xt::view(ids, 0)});
  const auto both = attention_entropy(q, k, {.document_ids = ids});
  CHECK(identical(xt::xarray<double>(xt::view(one, 0)), xt::xarray<double>(xt::view(both, 0))));
}

TEST_CASE("documents that do not fit are refused") {
  CHECK(refusal_of({.document_ids = integers{1, 2, 2, 1, 3}}) ==
        "each document must be one run of document_ids, got 1 in 2 runs");
  CHECK(refusal_of({.document_ids = integers{1, 2, 2, 3}}) ==
        "document_ids must broadcast to (..., n_keys) = (2, 5), got shape (4,)");
  CHECK(refusal_of({.document_ids = 1}, {3, 6, 4}, {3, 5, 4}) ==
        "document_ids needs a key for each query, whose document the query is of, got 6 queries "
        "and 5 keys");
  CHECK(refusal_of({.causal = causal_alignment::offset, .causal_offset = 3, .document_ids = 1},
                   {3, 4, 4}, {3, 5, 4}) ==
        "document_ids needs a key for each query, whose document the query is of, got 4 queries "
        "from key 3 on and 5 keys");
  CHECK(refusal_of({.document_ids = 1}) == "no error");
}

TEST_CASE("tables of the distance are matrices of (query, key)") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const std::size_t n_queries : {1, 7, 60}) {
      const std::size_t n_keys = 50;
      const inputs<T> in(n_queries, n_keys, 6, 3);
      const numbers t = distances(n_queries, n_keys);
      auto s = in.setting();
      s.bias = -0.25 * xt::abs(t);
      const attnscale::distance_table alibi(numbers(-0.25 * xt::arange<double>(60)));
      check_call(in, {.distance_bias = alibi}, s);
      // The two sides differ: a function of the signed distance.
      s.bias = xt::where(t > 0, -0.1 * t, 0.3 * t);
      const auto skew = [](const auto& steps) {
        return xt::where(steps > 0, -0.1 * steps, 0.3 * steps);
      };
      check_call(in, {.distance_bias = skew}, s);
    }
    const inputs<T> in(40, 50, 6, 3);
    const numbers t = xt::abs(distances(40, 50, 10));
    const oracle::matrix q = in.query, k = in.key;
    const oracle::matrix raw = oracle::product_transposed(q, k) * xt::exp(-0.1 * t);
    const numbers table = xt::exp(-0.1 * xt::arange<double>(50));
    const auto seen = attention_entropy(
        in.query, in.key,
        {.causal = causal_alignment::offset, .causal_offset = 10, .distance_scale = table});
    auto hidden = in.setting();
    for (std::size_t i = 0; i < 40; ++i)
      for (std::size_t j = i + 11; j < 50; ++j) hidden.visible(i, j) = false;
    CHECK(farthest(seen, oracle::softmax(raw, hidden).entropy) < 30 * bounds<T>::sums);
  });
}

TEST_CASE("tables: a number a head, and distances that key lengths move") {
  const auto q = normal<double>({2, 3, 5, 4}, 1), k = normal<double>({2, 3, 8, 4}, 2);
  numbers slopes = xt::zeros<double>({3, 8});
  for (std::size_t h = 0; h < 3; ++h)
    for (std::size_t t = 0; t < 8; ++t) slopes(h, t) = -double(t) / double(1 << h);
  const attention_options options{.causal = causal_alignment::bottom_right,
                                  .key_lengths = xt::xarray<int>{6, 8},
                                  .distance_bias = slopes};
  const auto all = attention_entropy(q, k, options);
  for (std::size_t b = 0; b < 2; ++b) {
    const std::size_t length = b == 0 ? 6 : 8;
    for (std::size_t h = 0; h < 3; ++h) {
      const numbers bias = -xt::abs(distances(5, length, double(length) - 5)) / double(1 << h);
      const auto alone =
          attention_entropy(xt::view(q, b, h), xt::view(k, b, h, xt::range(0, length)),
                            {.causal = causal_alignment::bottom_right, .attn_mask = bias});
      CHECK(farthest(xt::view(all, b, h), alone) < 1e-13);
    }
  }
}

TEST_CASE("a law of the distance is a factor of it, and a bias") {
  const auto q = normal<double>({6, 4}, 1), k = normal<double>({9, 4}, 2);
  const laws::scale_invariant law{3};
  const numbers t = xt::arange<double>(9);
  const numbers factor = xt::sqrt(1 + 2 * xt::log1p(t / 3)), bias = -2 * xt::log1p(t / 3);
  CHECK(farthest(attention_entropy(q, k, {.scale = law}),
                 attention_entropy(q, k, {.distance_scale = factor, .distance_bias = bias})) <
        1e-14);
  const numbers half = 0.5 * xt::ones<double>({9}), twice = 2 * factor;
  CHECK(farthest(attention_entropy(
                     q, k, {.scale = law, .distance_scale = half + half, .distance_bias = t}),
                 attention_entropy(q, k, {.distance_scale = factor, .distance_bias = bias + t})) <
        1e-14);
  CHECK(
      refusal([&] { attnscale::attention_state(q, k, k, {.scale = law}); }) ==
      "scale='scale_invariant' depends on distances in the whole sequence, and a state knows only "
      "its part");
}

TEST_CASE("tables that do not fit are refused") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(refusal_of({.distance_scale = numbers(xt::ones<double>({4}))}) ==
        "distance_scale must have an entry for each distance 0 ... 4 on its last axis, got shape "
        "(4,)");
  CHECK(refusal_of({.causal = causal_alignment::offset,
                    .causal_offset = 2,
                    .distance_bias = numbers(xt::ones<double>({6}))}) ==
        "distance_bias must have an entry for each distance 0 ... 6 on its last axis, got shape "
        "(6,)");
  CHECK(refusal_of({.distance_bias = numbers(xt::ones<double>({2, 5}))}) ==
        "distance_bias must broadcast to (..., heads) = (2, 3) before its last axis, got (2,)");
  CHECK(refusal_of({.distance_bias = numbers{0, 0, nan, 0, 0}}) ==
        "distance_bias must be finite, got NaN or infinity; attn_mask and window hide keys");
  CHECK(refusal_of({.distance_bias =
                        [](const auto&) {
                          return numbers{1, 2};
                        }}) ==
        "distance_bias must return one number for each of 9 distances on its last axis, got shape "
        "(2,)");
  // Distances are at most the largest one within a document.
  CHECK(refusal_of({.document_ids = integers{1, 1, 2, 2, 3}, .distance_bias = numbers{0, 1}}) ==
        "no error");
  const auto x = normal<double>({5, 4}, 1);
  CHECK(refusal([&] { attnscale::attention_state(x, x, x, {.distance_bias = numbers{0}}); }) ==
        "attention_state takes no distance_bias: distances are those of the whole sequence, and a "
        "state knows only its part");
}

TEST_CASE("qk_norm: rows of length 1, or sqrt(head_dim)") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    auto q = normal<T>({7, 6}, 1), k = normal<T>({9, 6}, 2);
    const auto v = normal<T>({9, 3}, 3);
    xt::view(q, 3) = T(0);
    xt::view(k, 4) *= std::numeric_limits<T>::max() / 16;  // whose squares overflow
    xt::view(k, 5) *= std::numeric_limits<T>::min();       // or underflow
    const auto by_hand = [](const xt::xarray<T>& rows, double length) {
      oracle::matrix wide = rows;
      for (std::size_t i = 0; i < wide.shape(0); ++i) {
        const double largest = xt::amax(xt::abs(xt::view(wide, i)))();
        if (largest > 0) xt::view(wide, i) /= largest;
        const double norm = std::sqrt(xt::sum(xt::square(xt::view(wide, i)))());
        if (norm > 0) xt::view(wide, i) *= length / norm;
      }
      return wide;
    };
    for (const row_norm each : {row_norm::l2, row_norm::rms}) {
      const double length = each == row_norm::l2 ? 1 : std::sqrt(6.0);
      auto s = oracle::setting(7, 9, 1.5);
      const auto wanted = oracle::attention(by_hand(q, length), by_hand(k, length), v, s);
      const attention_options options{.scale = 1.5, .qk_norm = each};
      CHECK(farthest(attention(q, k, v, options), wanted.output) < 10 * bounds<T>::sums);
      CHECK(farthest(attention_entropy(q, k, options), wanted.entropy) < 10 * bounds<T>::sums);
    }
    q(2, 5) = std::numeric_limits<T>::quiet_NaN();
    const auto rows = attention(q, k, v, {.qk_norm = row_norm::l2});
    for (std::size_t i = 0; i < 7; ++i) CHECK(std::isnan(rows(i, 0)) == (i == 2));
  });
}

}  // namespace test_call_options
