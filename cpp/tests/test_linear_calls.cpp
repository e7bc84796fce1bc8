// SPDX-License-Identifier: BSD-3-Clause
//
// The calls of linear_attention.hpp against plain loops in double; shapes, layouts and refusals.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "attnscale/linear_attention.hpp"
#include "compare.hpp"
#include "linear_loops.hpp"

namespace test_linear_calls {

using namespace attnscale;
using namespace testing;
using loops::difference;
using loops::everything;
using loops::matrix;

namespace {

template <class T>
constexpr double near = std::is_same_v<T, float> ? 2e-5 : 1e-12;

/// Rows of one head.
template <class T>
struct rows_of {
  xt::xarray<T> query, key, value;
  explicit rows_of(std::size_t n_queries, std::size_t n_keys, std::size_t dim = 5)
      : query(normal<T>({n_queries, dim}, 1)),
        key(normal<T>({n_keys, dim}, 2)),
        value(normal<T>({n_keys, 3}, 3)) {}
};

/// Options of a causal call in the form for loops.
struct sight {
  causal_alignment causal;
  std::int64_t given, offset;
};

std::vector<sight> sights(std::size_t n_queries, std::size_t n_keys) {
  using enum causal_alignment;
  const auto at_end = static_cast<std::int64_t>(n_keys) - static_cast<std::int64_t>(n_queries);
  return {{none, 0, everything},
          {top_left, 0, 0},
          {bottom_right, 0, at_end},
          {offset, 4, 4},
          {offset, -3, -3}};
}

/// Calls check(rows, sight) for few and many rows of either type.
template <class Check>
void for_each_case(Check check) {
  for_both_types([&](auto number) {
    using T = decltype(number);
    for (const auto& [n, m] : {std::pair{1, 1}, {7, 19}, {40, 33}, {66, 70}}) {
      const rows_of<T> in(static_cast<std::size_t>(n), static_cast<std::size_t>(m));
      for (const sight& each : sights(in.query.shape(0), in.key.shape(0))) {
        CAPTURE(in.query.shape(0));
        CAPTURE(in.key.shape(0));
        CAPTURE(each.offset);
        check(in, each, near<T>);
      }
    }
  });
}

xt::xarray<float> zeros(const shape_type& shape) { return xt::zeros<float>(shape); }

}  // namespace

TEST_CASE("efficient attention is two softmaxes") {
  for_each_case([](const auto& in, const sight& see, double bound) {
    const efficient_attention_options options{
        .scale = 0.7, .causal = see.causal, .causal_offset = see.given};
    CHECK(difference(efficient_attention(in.query, in.key, in.value, options),
                     loops::efficient(in.query, in.key, in.value, see.offset, 0.7)) < bound);
    efficient_attention_options other = options;
    other.normalization = efficient_normalization::scaling;
    CHECK(difference(efficient_attention(in.query, in.key, in.value, other),
                     loops::scaling(in.query, in.key, in.value, see.offset, 0.7)) < bound);
  });
}

TEST_CASE("linear attention divides sums of features") {
  for_each_case([](const auto& in, const sight& see, double bound) {
    linear_attention_options options{.causal = see.causal, .causal_offset = see.given};
    CHECK(difference(linear_attention(in.query, in.key, in.value, options),
                     loops::linear(in.query, in.key, in.value, see.offset, loops::elu)) < bound);
    options.feature_map = linear_feature_map::relu;
    const auto of_relu = linear_attention(in.query, in.key, in.value, options);
    CHECK(difference(of_relu, loops::linear(in.query, in.key, in.value, see.offset, loops::relu)) <
          bound);
    options.feature_map = linear_feature_map::given;
    auto phi_q = in.query, phi_k = in.key;
    for (auto* const features : {&phi_q, &phi_k})
      for (auto& x : *features) x = x > 0 ? x : 0;
    CHECK(difference(linear_attention(phi_q, phi_k, in.value, options), of_relu) < bound);
  });
}

TEST_CASE("cosFormer weighs by the cosine of the distance") {
  for_each_case([](const auto& in, const sight& see, double bound) {
    const cosformer_attention_options options{
        .max_length = 150, .causal = see.causal, .causal_offset = see.given};
    const std::int64_t first = see.offset == everything ? 0 : see.offset;
    CHECK(difference(cosformer_attention(in.query, in.key, in.value, options),
                     loops::cosformer(in.query, in.key, in.value, see.offset, 150, first)) < bound);
  });
}

TEST_CASE("Performer estimates the exponential by its directions") {
  const matrix directions = performer_projection(12, 5, {.from = {3, 1}});
  for_each_case([&](const auto& in, const sight& see, double bound) {
    performer_attention_options options{.projection = directions, .causal = see.causal};
    options.causal_offset = see.given;
    const auto seen = performer_attention(in.query, in.key, in.value, options);
    const double scale = 1 / std::sqrt(5.0);
    CHECK(difference(seen, loops::performer(in.query, in.key, in.value, see.offset, directions,
                                            scale)) < 4 * bound);
    options = {.features = 12, .from = {3, 1}, .causal = see.causal, .causal_offset = see.given};
    CHECK(identical(performer_attention(in.query, in.key, in.value, options), seen));
    options.scale = 0.3;
    CHECK(difference(performer_attention(in.query, in.key, in.value, options),
                     loops::performer(in.query, in.key, in.value, see.offset, directions, 0.3)) <
          4 * bound);
  });
}

TEST_CASE("directions are normal, and orthogonal in blocks") {
  const auto drawn = performer_projection(7, 3, {.from = {1, 2}});
  CHECK(drawn.shape() == dense_array<double>::shape_type{7, 3});
  for (std::size_t i = 0; i < 7; ++i)
    for (std::size_t j = i / 3 * 3; j < i; ++j)
      CHECK(std::abs(xt::sum(xt::row(drawn, int(i)) * xt::row(drawn, int(j)))()) < 1e-14);
  for (const bool orthogonal : {true, false}) {
    const auto many = performer_projection(30000, 4, {.orthogonal = orthogonal});
    double mean = 0, squares = 0, fourth = 0;
    for (const double x : many) mean += x, squares += x * x, fourth += x * x * x * x;
    const auto n = static_cast<double>(many.size());
    CHECK(std::abs(mean / n) < 0.02);
    CHECK(std::abs(squares / n - 1) < 0.03);
    CHECK(std::abs(fourth / n - 3) < 0.2);
  }
  CHECK(refusal([] { performer_projection(0, 3); }) == "features must be at least 1, got 0");
  CHECK(refusal([] { performer_projection(3, 0); }) == "head_dim must be at least 1, got 0");
}

TEST_CASE("state-space duality fades with its log-decays") {
  for_both_types([](auto number) {
    using T = decltype(number);
    for (const std::size_t n : {1, 17, 130}) {
      const rows_of<T> in(n, n);
      const auto decay = xt::xarray<double>(-0.2 * xt::abs(normal<double>({n}, 4)));
      const std::vector<double> decays(decay.begin(), decay.end());
      CHECK(difference(ssd(in.query, in.key, in.value, decay),
                       loops::ssd(in.query, in.key, in.value, decays)) < 20 * near<T>);
      CHECK(difference(ssd(in.query, in.key, in.value, -0.5),
                       loops::ssd(in.query, in.key, in.value, std::vector<double>(n, -0.5))) <
            20 * near<T>);
    }
  });
}

TEST_CASE("leading axes broadcast, and groups of heads share keys") {
  const auto q = normal<double>({2, 4, 6, 5}, 1), k = normal<double>({2, 9, 5}, 2),
             v = normal<double>({2, 1, 9, 3}, 3);
  const auto shared = linear_attention(q, k, v, {.is_causal = true, .enable_gqa = true});
  CHECK(shared.shape() == xt::xarray<double>::shape_type{2, 4, 6, 3});
  for (std::size_t b = 0; b < 2; ++b)
    for (std::size_t h = 0; h < 4; ++h)
      CHECK(difference(xt::view(shared, b, h), loops::linear(xt::view(q, b, h), xt::view(k, h / 2),
                                                             xt::view(v, b, 0), 0, loops::elu)) <
            1e-12);
  const auto one_head = normal<double>({9, 5}, 2);
  CHECK(efficient_attention(xt::view(q, 0), one_head, one_head).shape() ==
        xt::xarray<double>::shape_type{4, 6, 5});
}

TEST_CASE("views and column-major arrays are read in place, and float with double is double") {
  using columns = xt::xarray<double, xt::layout_type::column_major>;
  const auto q = normal<double>({2, 6, 5}, 1), k = normal<double>({2, 9, 5}, 2),
             v = normal<double>({2, 9, 3}, 3);
  const auto plain = linear_attention(q, k, v, {.is_causal = true});
  const columns q2 = q, k2 = k, v2 = v;
  CHECK(identical(linear_attention(q2, k2, v2, {.is_causal = true}), plain));
  const xt::xarray<double> swapped = xt::transpose(q, {1, 0, 2});
  CHECK(identical(linear_attention(xt::transpose(swapped, {1, 0, 2}), k, v, {.is_causal = true}),
                  plain));
  const auto part = xt::view(k, xt::all(), xt::range(0, 9, 2));
  const auto values = xt::view(v, xt::all(), xt::range(0, 9, 2));
  const xt::xarray<double> part_copied = part, values_copied = values;
  CHECK(identical(efficient_attention(q, part, values),
                  efficient_attention(q, part_copied, values_copied)));
  const auto narrow = normal<float>({2, 9, 3}, 3);
  static_assert(std::is_same_v<decltype(linear_attention(q, k, narrow)), dense_array<double>>);
  static_assert(
      std::is_same_v<decltype(linear_attention(narrow, narrow, narrow)), dense_array<float>>);
}

TEST_CASE("without keys, queries or channels rows are 0 or not there") {
  CHECK(linear_attention(zeros({3, 4}), zeros({0, 4}), zeros({0, 2})) == zeros({3, 2}));
  CHECK(efficient_attention(zeros({3, 0}), zeros({5, 0}), zeros({5, 2})) == zeros({3, 2}));
  const xt::xarray<float> ones = xt::ones<float>({5, 2});  // without channels all weights are equal
  const auto mean = performer_attention(zeros({3, 0}), zeros({5, 0}), ones);
  CHECK(difference(mean, xt::xarray<float>(xt::ones<float>({3, 2}))) < 1e-6);
  performer_state state;
  state.update(zeros({5, 0}), ones);
  CHECK(difference(state.read(zeros({3, 0})), mean) < 1e-6);
  CHECK_THROWS_AS(performer_projection(std::int64_t{1} << 60, 1024), std::bad_alloc);
  CHECK(linear_attention(zeros({0, 4}), zeros({5, 4}), zeros({5, 2})).size() == 0);
}

TEST_CASE("the number of threads changes no bit") {
  const rows_of<float> in(3000, 3000, 8);
  for (const bool is_causal : {false, true})
    CHECK(identical(
        linear_attention(in.query, in.key, in.value, {.is_causal = is_causal, .num_threads = 1}),
        linear_attention(in.query, in.key, in.value, {.is_causal = is_causal, .num_threads = 3})));
}

TEST_CASE("an interruption ends the call") {
  const auto x = zeros({400000, 64});  // the first poll comes after 25 ms
  const efficient_attention_options options{
      .is_causal = true, .num_threads = 1, .interrupted = [] { return true; }};
  CHECK_THROWS_AS(efficient_attention(x, x, x, options), interrupted);
}

TEST_CASE("what does not fit is refused with the argument, the rule and what was seen") {
  const auto x = zeros({2, 5, 4});
  const xt::xarray<float> negative = x - 0.5f;
  CHECK(refusal([&] { efficient_attention(zeros({4}), x, x); }) ==
        "query must have at least 2 axes (..., n, dim), got shape (4,)");
  CHECK(refusal([&] {
          linear_attention(zeros({2, 5, 3}), x, x);
        }) == "query and key must have the same last dimension (head_dim), got 3 and 4");
  CHECK(refusal([&] {
          linear_attention(x, x, zeros({2, 6, 4}));
        }) == "key and value must have the same number of keys, got 5 and 6");
  CHECK(refusal([&] {
          linear_attention(zeros({3, 5, 4}), x, x);
        }) ==
        "the numbers of heads must be equal or 1, got query 3, key 2, value 2; enable_gqa lets "
        "groups of query heads share a key head");
  CHECK(refusal([&] {
          linear_attention(x, x, x, {.is_causal = true, .causal = causal_alignment::bottom_right});
        }) == "is_causal means causal = top_left, got also causal = bottom_right");
  CHECK(refusal([&] { linear_attention(x, x, x, {.num_threads = -1}); }) ==
        "num_threads must be at least 1, or 0 for the default, got -1");
  CHECK(refusal([&] { efficient_attention(x, x, x, {.scale = INFINITY}); }) ==
        "scale must be finite, got inf");
  CHECK(refusal([&] {
          linear_attention(x, negative, x, {.feature_map = linear_feature_map::given});
        }) == "key must not be negative with feature_map = given, or weights would be; got -0.5");
}

TEST_CASE("families refuse what is theirs") {
  const auto x = zeros({2, 5, 4});
  CHECK(refusal([&] { cosformer_attention(x, x, x, {}); }) ==
        "max_length must be at least 1, got 0");
  CHECK(refusal([&] { cosformer_attention(x, x, x, {.max_length = 4}); }) ==
        "max_length must be at least the number of positions, 5, got 4");
  CHECK(refusal([&] { performer_attention(x, x, x, {.features = 0}); }) ==
        "features must be at least 1, got 0");
  CHECK(refusal([&] { performer_attention(x, x, x, {.scale = -1.0}); }) ==
        "scale must be positive, got -1");
  CHECK(refusal([&] {
          performer_attention(x, x, x, {.projection = zeros({7, 3})});
        }) == "projection must have the shape (features, head_dim) with head_dim = 4, got (7, 3)");
  matrix directions = performer_projection(7, 4);
  CHECK(refusal([&] { performer_attention(x, x, x, {.features = 6, .projection = directions}); }) ==
        "features must be the rows of the projection, 7, got 6");
  CHECK(refusal([&] {
          performer_attention(x, x, x, {.projection = directions, .from = {1, 2}});
        }) == "from draws the directions, so it must not be given with a projection");
  directions(6, 3) = NAN;
  CHECK(refusal([&] { performer_attention(x, x, x, {.projection = directions}); }) ==
        "projection must be finite, got nan");
  CHECK(refusal([&] {
          linear_attention(x, x, x, {.feature_map = attnscale::linear_feature_map(9)});
        }) == "feature_map must be an enumerator of its type, from 0 to 2, got 9");
  CHECK(refusal([&] {
          efficient_attention(x, x, x, {.normalization = attnscale::efficient_normalization(9)});
        }) == "normalization must be an enumerator of its type, from 0 to 1, got 9");
  CHECK(refusal([&] { linear_attention(x, x, x, {.causal_offset = 3}); }) ==
        "causal_offset goes with causal = offset, got 3 without it");
  CHECK(refusal([&] {
          ssd(x, zeros({2, 6, 4}), zeros({2, 6, 4}), 0);
        }) == "query and key must have the same number of rows, got 5 and 6");
  CHECK(refusal([&] { ssd(x, x, x, 0.25); }) == "log_decay must be finite and at most 0, got 0.25");
  CHECK(refusal([&] { ssd(x, x, x, -INFINITY); }) ==
        "log_decay must be finite and at most 0, got NaN or infinity");
  CHECK(refusal([&] { ssd(x, x, x, xt::zeros<double>({4})); }) ==
        "log_decay must broadcast to (..., heads, n) = (2, 5), got shape (4,)");
}

}  // namespace test_linear_calls
