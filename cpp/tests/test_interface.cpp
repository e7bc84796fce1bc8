// SPDX-License-Identifier: BSD-3-Clause
//
// Refusals of the calls, with their messages; states of parts of the keys, and merging them.
#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include "attnscale/attention.hpp"
#include "attnscale/solve_scale.hpp"
#include "compare.hpp"

namespace test_interface {

using attnscale::attention;
using attnscale::attention_options;
using attnscale::attention_state;
using attnscale::attention_state_result;
using attnscale::causal_alignment;
using attnscale::merge_states;
using namespace testing;

namespace {

xt::xarray<float> zeros(const shape_type& shape) { return xt::zeros<float>(shape); }

std::string refusal_of(const attention_options& options) {
  const auto x = zeros({2, 3, 5, 4});
  return refusal([&] { attention(x, x, x, options); });
}

std::string refusal_of(const shape_type& query, const shape_type& key, const shape_type& value,
                       bool enable_gqa = false) {
  return refusal(
      [&] { attention(zeros(query), zeros(key), zeros(value), {.enable_gqa = enable_gqa}); });
}

/// States of the keys in runs of `length`.
template <class T>
std::vector<attention_state_result<T>> states_of(const inputs<T>& in, std::size_t length) {
  std::vector<attention_state_result<T>> states;
  for (std::size_t key = 0; key < in.key.shape(0); key += length) {
    const std::size_t last = std::min(key + length, in.key.shape(0));
    states.push_back(attention_state(in.query, xt::view(in.key, xt::range(key, last)),
                                     xt::view(in.value, xt::range(key, last))));
  }
  return states;
}

template <class T>
void check_close(const attention_state_result<T>& seen, const oracle::expected& e) {
  const bounds<T> b(e);
  CHECK(worst_ratio(seen.output, e.output, b.output(e, 8)) <= 1);
  CHECK(worst_ratio(seen.lse, e.lse, b.lse(e)) <= 1);
  CHECK(worst_ratio(seen.mean_score, e.mean_score, b.mean_score(e)) <= 1);
  const oracle::column allowed = b.lse(e) + b.mean_score(e);
  CHECK(worst_ratio(seen.entropy(), e.entropy, allowed) <= 1);
}

}  // namespace

TEST_CASE("shapes that do not fit are refused, with the argument, the rule and what was seen") {
  CHECK(refusal_of({4}, {5, 4}, {5, 4}) ==
        "query must have at least 2 axes (..., n, dim), got shape (4,)");
  CHECK(refusal_of({3, 4}, {5, 6}, {5, 4}) ==
        "query and key must have the same last dimension (head_dim), got 4 and 6");
  CHECK(refusal_of({3, 4}, {5, 4}, {7, 4}) ==
        "key and value must have the same number of keys, got 5 and 7");
  CHECK(refusal_of({2, 1, 3, 4}, {3, 1, 5, 4}, {5, 4}) ==
        "the batch axes must broadcast, got query (2,) and key (3,) and value ()");
  CHECK(refusal_of({4, 3, 4}, {2, 5, 4}, {2, 5, 4}) ==
        "the numbers of heads must be equal or 1, got query 4, key 2, value 2; enable_gqa lets "
        "groups of query heads share a key head");
  CHECK(refusal_of({4, 3, 4}, {3, 5, 4}, {3, 5, 4}, true) ==
        "enable_gqa needs a number of query heads that is a multiple of the key and value heads, "
        "got query 4, key 3, value 3");
}

TEST_CASE("options out of range are refused") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(refusal_of({.scale = nan}) == "scale must be finite, got nan");
  CHECK(refusal_of({.scale = xt::xtensor<double, 1>{1, 2, 3}}) ==
        "scale must broadcast to (..., heads, n_queries) = (2, 3, 5), got shape (3,)");
  CHECK(refusal_of({.attn_mask = xt::xarray<bool>(xt::ones<bool>({4, 5}))}) ==
        "attn_mask must broadcast to (..., heads, n_queries, n_keys) = (2, 3, 5, 5), got shape "
        "(4, 5)");
  CHECK(refusal_of({.window = {-1, 0}}) == "window.left must be at least 0, or unbounded, got -1");
  CHECK(refusal_of({.is_causal = true, .window = {0, -5}}) ==
        "window.right must be at least 0, or unbounded, got -5");
  CHECK(refusal_of({.key_lengths = 6}) ==
        "key_lengths must be between 0 and the number of keys, 5, got 6");
  CHECK(refusal_of({.key_lengths = xt::xtensor<int, 1>{1, 2, 3}}) ==
        "key_lengths must broadcast to the batch shape (query.shape[:-3]) = (2,), got shape (3,)");
  CHECK(refusal_of({.is_causal = true, .causal = causal_alignment::bottom_right}) ==
        "is_causal means causal = top_left, got also causal = bottom_right");
  CHECK(refusal_of({.is_causal = true, .causal = causal_alignment::offset}) ==
        "is_causal means causal = top_left, got also causal = offset");
  CHECK(refusal_of({.causal = causal_alignment::offset, .causal_offset = attnscale::unbounded}) ==
        "causal_offset must be between -2^60 and 2^60, got 9223372036854775807");
  CHECK(refusal_of({.causal_offset = 3}) ==
        "causal_offset goes with causal = offset, got 3 without it");
  CHECK(refusal_of({.is_causal = true, .causal_offset = 3}) ==
        "causal_offset goes with causal = offset, got 3 without it");
  CHECK(refusal_of({.causal = causal_alignment(77)}) ==
        "causal must be an enumerator of its type, from 0 to 3, got 77");
  CHECK(refusal_of({.qk_norm = attnscale::row_norm(77)}) ==
        "qk_norm must be an enumerator of its type, from 0 to 2, got 77");
  CHECK(refusal_of({.normalizer = {attnscale::normalizer(77)}}) ==
        "normalizer must be an enumerator of its type, from 0 to 6, got 77");
  for (const double cap : {1e-320, 1e-40, 1e39})
    CHECK(refusal_of({.softcap = cap}) ==
          "softcap must be between 1e-37 and 1e37, where float32 holds it and its inverse, got " +
              attnscale::detail::text_of(cap));
  for (const double cap : {0.0, -1.0, nan})
    CHECK(refusal_of({.softcap = cap}) ==
          "softcap must be finite and greater than 0, got " + attnscale::detail::text_of(cap));
  CHECK(refusal_of({.num_threads = -1}) ==
        "num_threads must be at least 1, or 0 for the default, got -1");
  const auto x = zeros({5, 4});
  CHECK(refusal([&] { attnscale::entropy_curve(x, x, {1.0}, {.scale = 1.0}); }) ==
        "entropy_curve takes its scales from the argument scales, got also options.scale");
  CHECK(refusal([&] {
          attnscale::entropy_curve(x, x, {1.0, nan});
        }) == "scales must be finite, got nan");
}

TEST_CASE("numbers of normalizers out of range are refused where they are given") {
  namespace normalizers = attnscale::normalizers;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(refusal([] { normalizers::softmax_n(-1); }) ==
        "n must be greater than 0 (softmax() is n = 0), got -1");
  CHECK(refusal([] { normalizers::softmax_n(0); }) ==
        "n must be greater than 0 (softmax() is n = 0), got 0");
  for (const double each : {nan, -nan})
    CHECK(refusal([&] { normalizers::softmax_n(each); }) == "n must be finite, got nan");
  CHECK(refusal([] { normalizers::sink({}); }) ==
        "score of a sink must be a number or an array, got none");
  CHECK(refusal([] { normalizers::sigmoid({}); }) ==
        "bias of sigmoid must be a number or an array, got none");
}

TEST_CASE("numbers of another normalizer are refused, which would not read them") {
  using enum attnscale::normalizer;
  CHECK(refusal_of({.normalizer = {softmax, {.alpha = 2}}}) ==
        "normalizer: alpha goes with entmax, got another rule");
  CHECK(refusal_of({.normalizer = {entmax, {.k = 3}}}) ==
        "normalizer: k goes with top_k, got another rule");
  CHECK(refusal_of({.normalizer = {relu, {.eps = 1}}}) ==
        "normalizer: eps goes with softpick, got another rule");
  for (const auto& [rule, name] :
       {std::pair{softpick, "softpick"}, {entmax, "entmax"}, {top_k, "top_k"}})
    CHECK(refusal_of({.normalizer = {rule, {}, 1.0}}) ==
          "normalizer: rows of " + std::string(name) + " have no number, got one");
}

TEST_CASE("statistics and scales that are none are refused") {
  const auto x = zeros({5, 4});
  for (const int each : {13, 40})
    CHECK(refusal([&] {
            attnscale::attention_statistics(x, x, x, {}, {attnscale::statistic(each)});
          }) ==
          "statistic must be an enumerator of its type, from 0 to 12, got " + std::to_string(each));
  CHECK(refusal([&] { attnscale::solve_scale(x, x, 0.5, attnscale::scale_per(9)); }) ==
        "per must be an enumerator of its type, from 0 to 1, got 9");
}

TEST_CASE("a null pointer that should have elements is refused") {
  const auto x = zeros({5, 4});
  float* const nothing = nullptr;
  bool* const nobody = nullptr;
  const auto null = xt::adapt(nothing, 20, xt::no_ownership(), shape_type{5, 4});
  const auto mask = xt::adapt(nobody, 25, xt::no_ownership(), shape_type{5, 5});
  const std::string rule = " must have memory, got a null pointer";
  CHECK(refusal([&] { attention(null, x, x); }) == "an array of shape (5, 4)" + rule);
  CHECK(refusal([&] { attention(x, x, null); }) == "an array of shape (5, 4)" + rule);
  CHECK(refusal([&] { attention(x, x, x, {.attn_mask = std::cref(mask)}); }) ==
        "an array of shape (5, 5)" + rule);
  const auto none = xt::adapt(nothing, 0, xt::no_ownership(), shape_type{0, 4});
  CHECK(attention(none, x, x).size() == 0);
}

TEST_CASE("numbers are shown with the digits that tell them from others") {
  using attnscale::detail::text_of;
  CHECK(text_of(-1.0) == "-1");
  CHECK(text_of(0.1) == "0.1");
  CHECK(text_of(0.1f) == "0.1");
  CHECK(text_of(4.0000001) == "4.0000001");
  CHECK(text_of(1e39) == "1e+39");
  CHECK(text_of(1.0 / 3) == "0.3333333333333333");
  CHECK(text_of(-std::numeric_limits<double>::infinity()) == "-inf");
  CHECK(text_of(std::int64_t{-5}) == "-5");
}

TEST_CASE("a problem whose heads have no scale is refused") {
  const xt::xarray<float> x = xt::ones<float>({3, 4});
  const attnscale::attention_head head{.query = x.data(), .key = x.data()};
  const auto refused = [&](auto problem) {
    problem.n_queries = problem.n_keys = 3;
    problem.head_dim = 4;
    problem.query = problem.key = {.row = 4};
    problem.heads = {head};
    return refusal([&] { run(problem); });
  };
  const std::string wanted =
      "attention_head::scale must point at one number or one per row, got null";
  CHECK(refused(attnscale::attention_problem{}) == wanted);
  CHECK(refused(attnscale::gradient_problem{}) == wanted);
  CHECK(refused(attnscale::solve_problem{}) == wanted);
  CHECK(refused(attnscale::curve_problem{}) == "no error");
  const auto without_rows = [&](auto problem) {
    problem.n_queries = problem.n_keys = 3;
    problem.head_dim = 4;
    problem.heads = {attnscale::attention_head{.query = x.data()}};
    return refusal([&] { run(problem); });
  };
  const std::string rows = "attention_head::query and key must point at rows, got null";
  CHECK(without_rows(attnscale::attention_problem{}) == rows);
  CHECK(without_rows(attnscale::gradient_problem{}) == rows);
  CHECK(without_rows(attnscale::solve_problem{}) == rows);
  CHECK(without_rows(attnscale::curve_problem{}) == rows);
}

TEST_CASE("a result that no memory can hold is std::bad_alloc") {
  float one = 1;
  const std::size_t many = std::size_t{1} << (sizeof many > 4 ? 40 : 21);
  const auto huge =
      xt::adapt(&one, many / 4096 * many, xt::no_ownership(), shape_type{many / 4096, many, 1},
                std::vector<std::ptrdiff_t>{0, 0, 0});
  CHECK_THROWS_AS(attnscale::attention_entropy(huge, zeros({1, 1})), std::bad_alloc);
}

TEST_CASE("states of parts of the keys merge into the whole, in any grouping") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const inputs<T> in(20, 300, 8, 5);
    const auto e = oracle::attention(in.query, in.key, in.value, in.setting());
    for (const std::size_t length : {1, 7, 100, 300})
      check_close(merge_states(states_of(in, length)), e);
    const auto parts = states_of(in, 100);
    check_close(merge_states<T>({merge_states<T>({parts[2], parts[0]}), parts[1]}), e);
  });
}

TEST_CASE("a state without keys changes nothing; NaN and infinity survive a merge") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const inputs<T> in(4, 30, 8, 5);
    const auto whole = attention_state(in.query, in.key, in.value);
    const auto none = attention_state(in.query, in.key, in.value, {.key_lengths = 0});
    const auto merged = merge_states<T>({none, whole, none});
    CHECK(identical(merged.output, whole.output));
    CHECK(identical(merged.lse, whole.lse));
    const auto empty = merge_states<T>({none, none});
    CHECK(identical(empty.output, none.output));
    CHECK(identical(empty.lse, none.lse));
    CHECK(xt::all(xt::equal(empty.entropy(), T(0))));

    auto low = whole, broken = whole;
    low.lse -= T(5000);
    low.output(1, 2) = std::numeric_limits<T>::infinity();
    broken.lse(3) = std::numeric_limits<T>::quiet_NaN();
    CHECK(!std::isfinite(merge_states<T>({whole, low}).output(1, 2)));
    CHECK(std::isnan(merge_states<T>({none, broken}).lse(3)));
  });
}

TEST_CASE("a row without keys may hold anything, and changes nothing") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const inputs<T> in(4, 30, 8, 5);
    const auto whole = attention_state(in.query, in.key, in.value);
    auto none = attention_state(in.query, in.key, in.value, {.key_lengths = 0});
    for (const T left : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()}) {
      none.output.fill(left);
      none.mean_score.fill(left);
      CHECK(xt::all(xt::equal(none.entropy(), T(0))));
      const auto merged = merge_states<T>({none, whole, none});
      CHECK(identical(merged.output, whole.output));
      CHECK(identical(merged.lse, whole.lse));
      CHECK(identical(merged.mean_score, whole.mean_score));
      CHECK(identical(merged.entropy(), whole.entropy()));
      const auto empty = merge_states<T>({none, none});
      CHECK(xt::all(xt::equal(empty.output, T(0))));
      CHECK(xt::all(xt::equal(empty.mean_score, T(0))));
      CHECK(xt::all(xt::equal(empty.lse, -std::numeric_limits<T>::infinity())));
    }
  });
}

TEST_CASE("the entropy of a state keeps its digits where scores are large, merged, too") {
  // Exact scores around 8192, where neighbouring floats are 2^-10 apart.
  constexpr std::size_t n = 3000;
  xt::xarray<float> q = xt::ones<float>({std::size_t{4}, std::size_t{2}});
  xt::xarray<float> k = 8192 * xt::ones<float>({n, std::size_t{2}});
  for (std::size_t i = 0; i < 4; ++i) q(i, 1) = static_cast<float>(i + 1) / 64;
  for (std::size_t j = 0; j < n; ++j)
    k(j, 1) = static_cast<float>((j * 7919) % 61) / 16 - (j < 700 ? 0.f : 64.f);
  const xt::xarray<double> wide_q = xt::cast<double>(q), wide_k = xt::cast<double>(k);
  const auto want = attnscale::attention_entropy(wide_q, wide_k, {.scale = 1.0});
  const auto part = [&](std::size_t first, std::size_t last) {
    const xt::xarray<float> keys = xt::view(k, xt::range(first, last));
    return attention_state(q, keys, keys, {.scale = 1.0});
  };
  const auto merged = merge_states<float>({part(0, 700), part(700, 1900), part(1900, n)});
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(part(0, n).entropy()(i) == doctest::Approx(want(i)).epsilon(1e-6));
    CHECK(merged.entropy()(i) == doctest::Approx(want(i)).epsilon(1e-6));
  }
}

TEST_CASE("states that do not belong together are refused") {
  const inputs<float> a(4, 30, 8, 5), b(3, 30, 8, 5);
  using states = std::vector<attention_state_result<float>>;
  CHECK(refusal([] { merge_states(states{}); }) == "states must hold at least one state, got none");
  CHECK(refusal([&] {
          merge_states(states{attention_state(a.query, a.key, a.value),
                              attention_state(b.query, b.key, b.value)});
        }) == "states must agree in the shape of output, got (4, 5) and (3, 5)");
}

TEST_CASE("argmax is the first of equal keys, across tiles and splits too") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const std::size_t n : {10, 500, 20000})
      for (const std::size_t n_queries : {2, 9}) {
        const xt::xarray<T> q = xt::ones<T>({n_queries, std::size_t{1}});
        xt::xarray<T> k = xt::zeros<T>({n, std::size_t{1}});
        const auto top = [&](const attention_options& options) {
          return (*attnscale::attention_statistics(q, k, options, {attnscale::statistic::argmax})
                       .argmax)(1);
        };
        CHECK(top({}) == 0);
        CHECK(top({.window = {0, attnscale::unbounded}}) == 1);
        k(7, 0) = k(n - 1, 0) = T(2);
        CHECK(top({}) == 7);
        CHECK(top({.softcap = 3}) == 7);
        CHECK(top({.scale = -1.0}) == 0);
      }
  });
}

}  // namespace test_interface
