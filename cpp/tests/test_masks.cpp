// SPDX-License-Identifier: BSD-3-Clause
//
// Visible keys of a row: causal, window, key_lengths and array masks, alone and together. The
// oracle writes out each of them as a boolean matrix.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "attnscale/attention.hpp"
#include "compare.hpp"

namespace test_masks {

using attnscale::attention;
using attnscale::attention_options;
using attnscale::causal_alignment;
using attnscale::unbounded;
using namespace testing;

namespace {

/// The definition of causal, window and key_lengths, key by key.
void hide(oracle::setting& s, const attention_options& options, std::int64_t key_length) {
  const auto n_queries = static_cast<std::int64_t>(s.visible.shape(0));
  const auto n_keys = static_cast<std::int64_t>(s.visible.shape(1));
  const std::int64_t offset = options.causal == causal_alignment::bottom_right
                                  ? key_length - n_queries
                              : options.causal == causal_alignment::offset ? options.causal_offset
                                                                           : 0;
  const bool causal = options.is_causal || options.causal != causal_alignment::none;
  for (std::int64_t i = 0; i < n_queries; ++i)
    for (std::int64_t j = 0; j < n_keys; ++j) {
      const std::int64_t beside = j - (i + offset);
      const bool seen = j < key_length && !(causal && beside > 0) &&
                        !(beside < 0 && -beside > options.window.left) &&
                        !(beside > 0 && beside > options.window.right);
      s.visible(i, j) = s.visible(i, j) && seen;
    }
}

template <class T>
void check_hidden(const inputs<T>& in, attention_options options) {
  oracle::setting s = in.setting();
  const auto n_keys = static_cast<std::int64_t>(in.key.shape(0));
  hide(s, options, options.key_lengths ? options.key_lengths.values()() : n_keys);
  CAPTURE(int(options.causal));
  CAPTURE(options.window.left);
  CAPTURE(options.window.right);
  check_call(in, options, s);
}

constexpr std::array<std::array<std::size_t, 2>, 10> shapes{{{1, 1},
                                                             {7, 7},
                                                             {64, 64},
                                                             {65, 193},
                                                             {193, 65},
                                                             {70, 385},
                                                             {130, 193},
                                                             {1, 300},
                                                             {130, 1},
                                                             {97, 192}}};

/// A boolean mask with about a fraction `share` of true entries.
xt::xarray<bool> random_mask(const shape_type& shape, unsigned seed, double share) {
  const xt::xarray<double> x = normal<double>(shape, seed);
  return x < share * 4 - 2;
}

/// Numbers around half of a type's lowest: two that hide a key, and the next above.
template <class M>
struct low_numbers {
  M lowest, half, above;
};

/// Hides keys by both numbers, and no key by the one above; hidden elements hold NaN where no row
/// sees them.
template <class M, class T>
void check_low_numbers(const low_numbers<M>& low, std::size_t n_queries, T) {
  constexpr std::size_t n_keys = 90;
  inputs<T> in(n_queries, n_keys, 4, 3);
  xt::view(in.key, 5) = xt::view(in.value, 5) = std::numeric_limits<T>::quiet_NaN();
  xt::xarray<bool> kept = random_mask({n_queries, n_keys}, 8, 0.6);
  xt::view(kept, xt::all(), 5) = false;
  if (n_queries > 1) xt::view(kept, 1) = false;
  auto mask = xt::xarray<M>::from_shape({n_queries, n_keys}), large = mask;
  for (std::size_t i = 0; i < mask.size(); ++i) {
    mask.flat(i) = kept.flat(i) ? M(0.f) : i % 3 ? low.lowest : low.half;
    large.flat(i) = i % n_keys == 5 ? low.half : low.above;
  }
  oracle::setting s = in.setting();
  s.visible = kept;
  check_call(in, {.attn_mask = mask}, s);
  CHECK(attnscale::count_visible(in.query, in.key, {.attn_mask = mask}) ==
        xt::sum(xt::cast<std::int64_t>(kept), {1}));
  const auto rows = attnscale::attention_statistics(in.query, in.key, {.attn_mask = large},
                                                    {attnscale::statistic::n_visible});
  CHECK(xt::all(xt::equal(*rows.n_visible, static_cast<std::int64_t>(n_keys - 1))));
}

}  // namespace

TEST_CASE("causal, both alignments, with as many queries as keys and not") {
  for_both_types([](auto zero) {
    for (const auto& [n_queries, n_keys] : shapes) {
      const inputs<decltype(zero)> in(n_queries, n_keys, 8, 5);
      check_hidden(in, {.is_causal = true});
      check_hidden(in, {.causal = causal_alignment::top_left});
      check_hidden(in, {.causal = causal_alignment::bottom_right});
    }
  });
}

TEST_CASE("windows, with open sides, beside both alignments") {
  for_both_types([](auto zero) {
    for (const auto& [n_queries, n_keys] : shapes) {
      const inputs<decltype(zero)> in(n_queries, n_keys, 4, 3);
      for (const auto& [left, right] : {std::array<std::int64_t, 2>{0, 0},
                                        {3, 0},
                                        {0, 5},
                                        {64, 2},
                                        {unbounded, 1},
                                        {2, unbounded},
                                        {200, 200},
                                        {unbounded - 1, unbounded - 1}}) {
        check_hidden(in, {.window = {left, right}});
        check_hidden(in, {.causal = causal_alignment::bottom_right, .window = {left, right}});
      }
    }
  });
}

TEST_CASE("causal from any key on") {
  for_both_types([](auto zero) {
    for (const auto& [n_queries, n_keys] : shapes) {
      const inputs<decltype(zero)> in(n_queries, n_keys, 8, 5);
      const auto keys = static_cast<std::int64_t>(n_keys);
      for (const std::int64_t offset : {std::int64_t{-70}, std::int64_t{-1}, std::int64_t{0},
                                        std::int64_t{3}, keys - 1, keys, std::int64_t{1} << 60}) {
        check_hidden(in, {.causal = causal_alignment::offset, .causal_offset = offset});
        check_hidden(
            in, {.causal = causal_alignment::offset, .causal_offset = offset, .window = {9, 0}});
      }
    }
  });
}

TEST_CASE("key_lengths, also 0, with causal and window") {
  for_both_types([](auto zero) {
    const inputs<decltype(zero)> in(70, 200, 6, 4);
    for (const std::int64_t length : {0, 1, 63, 64, 191, 192, 199, 200}) {
      check_hidden(in, {.key_lengths = length});
      check_hidden(in, {.causal = causal_alignment::bottom_right, .key_lengths = length});
      check_hidden(in, {.is_causal = true, .window = {10, 0}, .key_lengths = length});
    }
  });
}

TEST_CASE("key_lengths are one a batch entry") {
  const auto q = normal<float>({3, 2, 10, 8}, 1), k = normal<float>({3, 2, 30, 8}, 2),
             v = normal<float>({3, 2, 30, 4}, 3);
  const xt::xarray<int> lengths = {0, 7, 30};
  const auto seen = attention(q, k, v, {.key_lengths = lengths});
  for (std::size_t b = 0; b < 3; ++b)
    for (std::size_t h = 0; h < 2; ++h)
      CHECK(identical(xt::xarray<float>(xt::view(seen, b, h)),
                      attention(xt::view(q, b, h), xt::view(k, b, h), xt::view(v, b, h),
                                {.key_lengths = lengths(b)})));
}

TEST_CASE("boolean masks, broadcast over queries or keys, and rows that see nothing") {
  for_both_types([](auto zero) {
    for (const auto& [n_queries, n_keys] : shapes) {
      const inputs<decltype(zero)> in(n_queries, n_keys, 4, 3);
      for (const auto& shape :
           {shape_type{n_queries, n_keys}, {1, n_keys}, {n_queries, 1}, {n_keys}})
        for (const double share : {0.02, 0.5, 0.98}) {
          const xt::xarray<bool> mask = random_mask(shape, 7, share);
          oracle::setting s = in.setting();
          s.visible = xt::broadcast(mask, s.visible.shape());
          check_call(in, {.attn_mask = mask}, s);
        }
    }
  });
}

TEST_CASE("additive masks: a bias, -inf hides the key") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const auto& [n_queries, n_keys] : shapes) {
      const inputs<T> in(n_queries, n_keys, 4, 3);
      for (const auto& shape : {shape_type{n_queries, n_keys}, {1, n_keys}, {n_queries, 1}}) {
        const xt::xarray<bool> kept = random_mask(shape, 8, 0.6);
        const xt::xarray<T> mask = xt::where(kept, normal<T>(shape, 9, 2), T(-oracle::infinity));
        oracle::setting s = in.setting();
        s.visible = xt::broadcast(kept, s.visible.shape());
        s.bias = xt::where(s.visible, xt::broadcast(mask, s.visible.shape()), 0.0);
        check_call(in, {.attn_mask = mask}, s);
        check_call(in, {.attn_mask = xt::xarray<double>(mask)}, s);
      }
    }
  });
}

TEST_CASE("additive masks: half of the smallest number of their type hides the key") {
  using attnscale::bfloat16;
  using attnscale::float16;
  using narrow = std::numeric_limits<float>;
  using wide = std::numeric_limits<double>;
  const float half = narrow::lowest() / 2;
  const low_numbers<float> of_float{narrow::lowest(), half, std::nextafter(half, 0.f)};
  const low_numbers<double> of_double{wide::lowest(), wide::lowest() / 2, narrow::lowest()};
  const low_numbers<float16> of_float16{float16(-65504.f), float16(-32752.f), float16(-32736.f)};
  const low_numbers<bfloat16> of_bfloat16{bfloat16::from_bits(0xff7f), bfloat16::from_bits(0xfeff),
                                          bfloat16::from_bits(0xfefe)};
  for_both_types([&](auto zero) {
    for (const std::size_t n_queries : {1, 9, 70}) {
      check_low_numbers(of_float, n_queries, zero);
      check_low_numbers(of_double, n_queries, zero);
      check_low_numbers(of_float16, n_queries, zero);
      check_low_numbers(of_bfloat16, n_queries, zero);
    }
  });
}

TEST_CASE("mask, causal, window, key length and soft-cap together") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const inputs<T> in(140, 230, 8, 5);
    const xt::xarray<T> mask = normal<T>({140, 230}, 5);
    attention_options options{.causal = causal_alignment::bottom_right,
                              .attn_mask = mask,
                              .window = {40, 3},
                              .key_lengths = 201,
                              .softcap = 3};
    oracle::setting s = in.setting();
    s.bias = mask;
    s.softcap = 3;
    hide(s, options, 201);
    check_call(in, options, s);
  });
}

TEST_CASE("masks have leading axes, and any strides") {
  const auto q = normal<float>({2, 3, 20, 4}, 1), k = normal<float>({2, 3, 50, 4}, 2);
  const xt::xarray<bool> mask = random_mask({2, 1, 20, 50}, 3, 0.5);
  const auto wanted = attnscale::attention_entropy(q, k, {.attn_mask = mask});
  const xt::xarray<bool, xt::layout_type::column_major> fortran = mask;
  CHECK(identical(wanted, attnscale::attention_entropy(q, k, {.attn_mask = fortran})));
  CHECK(identical(wanted, attnscale::attention_entropy(q, k, {.attn_mask = mask && mask})));
  for (std::size_t b = 0; b < 2; ++b)
    for (std::size_t h = 0; h < 3; ++h)
      CHECK(identical(xt::xarray<float>(xt::view(wanted, b, h)),
                      attnscale::attention_entropy(xt::view(q, b, h), xt::view(k, b, h),
                                                   {.attn_mask = xt::view(mask, b, 0)})));
}

TEST_CASE("split keys: rows whose first or last splits see nothing") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const inputs<T> in(4, 30000, 4, 3);
    check_hidden(in, {.causal = causal_alignment::bottom_right, .window = {100, 0}});
    check_hidden(in, {.window = {50, 20}});
    check_hidden(in, {.key_lengths = 17});
    check_hidden(in, {.key_lengths = 0});
    xt::xarray<bool> mask = random_mask({4, 30000}, 6, 0.5);
    xt::view(mask, 0, xt::range(0, 29990)).fill(false);
    xt::view(mask, 1).fill(false);
    xt::view(mask, 2, xt::range(10, 30000)).fill(false);
    oracle::setting s = in.setting();
    s.visible = mask;
    check_call(in, {.attn_mask = mask}, s);
  });
}

TEST_CASE("count_visible counts what the statistics count") {
  const auto q = normal<float>({2, 70, 4}, 1), k = normal<float>({2, 90, 4}, 2);
  const xt::xarray<float> mask =
      xt::where(random_mask({70, 90}, 3, 0.5), 0.5f, -std::numeric_limits<float>::infinity());
  for (const attention_options& options :
       {attention_options{}, attention_options{.is_causal = true},
        attention_options{
            .causal = causal_alignment::bottom_right, .attn_mask = mask, .window = {9, 0}}}) {
    const auto seen =
        attnscale::attention_statistics(q, k, options, {attnscale::statistic::n_visible});
    CHECK(attnscale::count_visible(q, k, options) == *seen.n_visible);
    CHECK(!seen.lse);
    CHECK(!seen.output);
  }
}

TEST_CASE("a row that sees nothing") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const inputs<T> in(3, 200, 4, 2);
    const auto row = attnscale::attention_statistics(
        in.query, in.key, in.value, {.attn_mask = xt::xarray<bool>(xt::zeros<bool>({1, 200}))},
        attnscale::all_statistics);
    const T minus_infinity = -std::numeric_limits<T>::infinity();
    CHECK(xt::all(xt::equal(*row.output, T(0))));
    CHECK(xt::all(xt::equal(*row.lse, minus_infinity)));
    CHECK(xt::all(xt::equal(*row.max_score, minus_infinity)));
    CHECK(xt::all(xt::equal(*row.min_score, -minus_infinity)));
    for (const auto* zeros : {&row.entropy, &row.mean_score, &row.score_variance,
                              &row.concentration, &row.max_weight, &row.renyi2})
      CHECK(xt::all(xt::equal(**zeros, T(0))));
    CHECK(xt::all(xt::equal(*row.argmax, -1)));
    CHECK(xt::all(xt::equal(*row.n_visible, 0)));
  });
}

}  // namespace test_masks
