// SPDX-License-Identifier: BSD-3-Clause
//
// Contents of arrays: 16-bit numbers, and empty arrays.
#include <doctest/doctest.h>

#include <cmath>
#include <deque>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "attnscale/attention_gradients.hpp"
#include "attnscale/attention_weights.hpp"
#include "attnscale/solve_scale.hpp"
#include "compare.hpp"

namespace test_storage {

using attnscale::attention;
using attnscale::attention_gradients;
using attnscale::attention_statistics;
using attnscale::bfloat16;
using attnscale::dense_array;
using attnscale::float16;
using attnscale::normalizer_choice;
namespace normalizers = attnscale::normalizers;
using namespace testing;

namespace {

template <class Half>
xt::xarray<Half> narrowed(const xt::xarray<float>& x) {
  return xt::cast<Half>(x);
}

template <class Half>
xt::xarray<float> widened(const xt::xarray<Half>& x) {
  return xt::cast<float>(x);
}

template <class A, class T>
constexpr bool holds = std::is_same_v<typename A::value_type, T>;

/// Compares calls on 16-bit arrays with those on the same numbers in float, rounded at the end.
template <class Half>
void check_half() {
  const auto q = narrowed<Half>(normal<float>({2, 7, 6}, 1)),
             k = narrowed<Half>(normal<float>({2, 9, 6}, 2)),
             v = narrowed<Half>(normal<float>({2, 9, 3}, 3)),
             g = narrowed<Half>(normal<float>({2, 7, 3}, 4)),
             mask = narrowed<Half>(normal<float>({7, 9}, 5));
  const auto wq = widened(q), wk = widened(k), wv = widened(v), wg = widened(g);
  const attnscale::attention_options options{.scale = 0.5, .attn_mask = mask},
      wide{.scale = 0.5, .attn_mask = widened(mask)};
  const auto output = attention(q, k, v, options);
  static_assert(holds<decltype(output), Half>);
  const auto expected = attention(wq, wk, wv, wide);
  CHECK(xt::amax(xt::abs(widened<Half>(output) - expected))() < 0.02);
  CHECK(identical(output, dense_array<Half>(xt::cast<Half>(expected))));

  const auto rows = attention_statistics(q, k, v, options, attnscale::all_statistics);
  static_assert(holds<typename decltype(rows.lse)::value_type, float>);
  const auto of_wide = attention_statistics(wq, wk, wv, wide, attnscale::all_statistics);
  CHECK(identical(*rows.lse, *of_wide.lse));
  CHECK(identical(*rows.entropy, *of_wide.entropy));
  CHECK(identical(*rows.output, output));

  const auto found = attention_gradients(q, k, v, g, options, {.entropy = 0.5}, &rows);
  static_assert(holds<decltype(found.query), Half>);
  const auto gradients = attention_gradients(wq, wk, wv, wg, wide, {.entropy = 0.5});
  CHECK(xt::allclose(widened<Half>(found.query), gradients.query, 0.02, 0.01));
  CHECK(xt::allclose(widened<Half>(found.value), gradients.value, 0.02, 0.01));

  // Beside wider arrays: the type of those.
  static_assert(holds<decltype(attention(q, wk, v)), float>);
  const xt::xarray<double> twice = xt::cast<double>(wq);
  static_assert(holds<decltype(attention(q, twice, v)), double>);
  CHECK(identical(attention(q, wk, v, options), attention(wq, wk, wv, wide)));

  const auto state = attnscale::attention_state(q, k, v);
  CHECK(identical(attnscale::merge_states(std::vector{state}).output, state.output));
  CHECK(identical(attnscale::attention_weights(q, k, {.qk_norm = attnscale::row_norm::rms}),
                  attnscale::attention_weights(wq, wk, {.qk_norm = attnscale::row_norm::rms})));
  CHECK(identical(attnscale::solve_scale(q, k, 1.0).scale,
                  attnscale::solve_scale(wq, wk, 1.0).scale));
}

/// The caller's memory: null if there are no numbers.
template <class T>
using adapted = decltype(xt::adapt(std::declval<T*&>(), std::size_t{}, xt::no_ownership(),
                                   std::declval<shape_type&>()));

template <class A>
A sized(const shape_type& shape) {
  using T = std::remove_const_t<typename A::value_type>;
  if constexpr (std::is_same_v<A, adapted<T>>) {
    static std::deque<xt::xarray<T>> kept;
    kept.push_back(normal<T>(shape, 1));
    T* memory = kept.back().size() ? kept.back().data() : nullptr;
    shape_type extents = shape;
    return xt::adapt(memory, kept.back().size(), xt::no_ownership(), extents);
  } else {
    return A(normal<T>(shape, 1));
  }
}

/// Rows of calls without keys, as in Python.
template <class A>
void check_no_keys(const normalizer_choice& rule) {
  const A q = sized<A>({2, 5, 4}), k = sized<A>({2, 0, 4}), v = sized<A>({2, 0, 3});
  const auto found = attention(q, k, v, {.normalizer = rule});
  REQUIRE(xt::xarray<float>(found).shape() == shape_type{2, 5, 3});
  for (const auto each : found) CHECK(each == 0);
  const auto g = sized<A>({2, 5, 3});
  const auto gradients = attention_gradients(q, k, v, g, {.normalizer = rule});
  REQUIRE(gradients.query.size() == 40);
  for (const auto each : gradients.query) CHECK(each == 0);
  for (const auto each : gradients.scale) CHECK(each == 0);
  CHECK(gradients.value.size() == 0);
}

template <class A>
void check_empty() {
  for (const auto& rule : {normalizers::softmax(), normalizers::sink(1.0),
                           normalizers::sigmoid(0.5), normalizers::sparsemax(),
                           normalizers::top_k(2), normalizers::relu(), normalizers::softpick()})
    check_no_keys<A>(rule);
  const A q = sized<A>({2, 5, 4}), none = sized<A>({2, 0, 4}), k = sized<A>({2, 6, 4}),
          v = sized<A>({2, 6, 3}), no_value = sized<A>({2, 0, 3});
  const auto rows = attention_statistics(q, none, no_value, {}, attnscale::all_statistics);
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(std::isinf(rows.lse->flat(i)));
    CHECK(std::isinf(rows.max_score->flat(i)));
    CHECK(rows.entropy->flat(i) == 0);
    CHECK(rows.n_visible->flat(i) == 0);
    CHECK(rows.argmax->flat(i) == -1);
  }
  CHECK(attnscale::attention_weights(q, none).size() == 0);
  CHECK(attnscale::attention_weights(none, sized<A>({2, 200, 4})).size() == 0);
  const xt::xarray<double> mask = xt::zeros<double>({5, 0});
  for (const auto each : attention(q, none, no_value, {.attn_mask = mask})) CHECK(each == 0);
  const auto table = [](const auto& t) { return 0.5 * t; };
  for (const auto each : attention(q, none, no_value, {.distance_bias = table})) CHECK(each == 0);
  CHECK(attention(none, k, v).shape()[1] == 0);
  CHECK(attention(q, k, sized<A>({2, 6, 0})).size() == 0);
  CHECK(attention_gradients(none, k, v, no_value).query.size() == 0);
  for (const auto each : attention_gradients(none, k, v, no_value).key) CHECK(each == 0);
  const A no_heads = sized<A>({0, 5, 4});
  CHECK(attention(no_heads, no_heads, no_heads).size() == 0);
  CHECK(attention_gradients(no_heads, no_heads, no_heads, no_heads).key.size() == 0);
  CHECK(attnscale::solve_scale(none, k, 1.0).scale.size() == 0);
  CHECK(attnscale::entropy_curve(q, none, {1.0, 2.0}).entropy.size() == 20);
  const auto state = attnscale::attention_state(q, none, no_value);
  for (const auto each : state.output) CHECK(each == 0);
}

/// Without channels all scores are 0: all keys have equal weight.
template <class A>
void check_no_channels() {
  const A q = sized<A>({2, 5, 0}), k = sized<A>({2, 6, 0}), v = sized<A>({2, 6, 3});
  const auto found = attention(q, k, v);
  const xt::xarray<typename A::value_type> mean = xt::mean(v, {1});
  for (std::size_t h = 0; h < 2; ++h)
    for (std::size_t i = 0; i < 5; ++i)
      for (std::size_t c = 0; c < 3; ++c) CHECK(std::abs(found(h, i, c) - mean(h, c)) < 1e-6);
  for (const auto each : attnscale::attention_entropy(q, k, {.qk_norm = attnscale::row_norm::rms}))
    CHECK(std::abs(each - std::log(6.0)) < 1e-6);
  const auto gradients = attention_gradients(q, k, v, sized<A>({2, 5, 3}));
  CHECK(gradients.query.size() == 0);
  for (const auto each : gradients.scale) CHECK(each == 0);
  CHECK(gradients.value.size() == 36);
}

}  // namespace

TEST_CASE("16-bit arrays are storage: the arithmetic is that of float") {
  check_half<float16>();
  check_half<bfloat16>();
}

TEST_CASE("16-bit numbers convert to float and back") {
  CHECK(static_cast<float>(float16(1.5F)) == 1.5F);
  CHECK(float16(65504).bits() == 0x7bff);
  CHECK(std::isinf(static_cast<float>(float16(65520))));
  CHECK(static_cast<float>(bfloat16::from_bits(0x3fc0)) == 1.5F);
  CHECK(static_cast<float>(bfloat16(1 + 0x1p-8F)) == 1);  // a tie, to even
  CHECK(std::isnan(static_cast<float>(bfloat16(std::numeric_limits<float>::quiet_NaN()))));
  static_assert(sizeof(float16) == 2 && std::is_trivial_v<float16> && std::is_trivial_v<bfloat16>);
  static_assert(!std::is_convertible_v<float, float16> && std::is_convertible_v<float16, float>);
}

TEST_CASE("arrays without keys, queries, heads or values") {
  check_empty<xt::xarray<float>>();
  check_empty<xt::xarray<double>>();
  check_empty<xt::xtensor<float, 3>>();
  check_empty<adapted<float>>();
}

TEST_CASE("arrays without channels") {
  check_no_channels<xt::xarray<float>>();
  check_no_channels<xt::xtensor<double, 3>>();
  check_no_channels<adapted<double>>();
}

}  // namespace test_storage
