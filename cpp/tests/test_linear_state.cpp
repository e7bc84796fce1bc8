// SPDX-License-Identifier: BSD-3-Clause
//
// States of linear attention: keys in parts, consecutive chunks, merged states, and refusals.
#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "attnscale/linear_attention.hpp"
#include "compare.hpp"
#include "linear_loops.hpp"

namespace test_linear_state {

using namespace attnscale;
using loops::difference;
using testing::for_both_types;
using testing::identical;
using testing::normal;
using testing::refusal;

namespace {

constexpr std::size_t heads = 2, n = 70, dim = 5, value_dim = 3;

template <class A>
auto rows(const A& array, std::size_t first, std::size_t last) {
  return xt::view(array, xt::all(), xt::range(first, last));
}

/// Bounds of the parts of the keys: no rows, one, few and many.
const std::vector<std::size_t> part_ends{0, 1, 1, 8, 48, n};

template <class T>
struct sequence {
  xt::xarray<T> query = normal<T>({heads, n, dim}, 1), key = normal<T>({heads, n, dim}, 2),
                value = normal<T>({heads, n, value_dim}, 3);
};

template <class T>
constexpr double near = std::is_same_v<T, float> ? 2e-5 : 1e-12;

/// Compares a state in parts, read and extended, and two merged states with the call over all keys.
template <class T, class State, class Call>
void check_family(const State& empty, Call call) {
  const sequence<T> in;
  const auto causal = call(in.query, in.key, in.value);
  State taken = empty, extended = empty;
  std::vector<State> apart;
  for (std::size_t part = 0; part + 1 < part_ends.size(); ++part) {
    const std::size_t first = part_ends[part], last = part_ends[part + 1];
    const auto q = rows(in.query, first, last), k = rows(in.key, first, last),
               v = rows(in.value, first, last);
    CHECK(difference(extended.extend(q, k, v), rows(causal, first, last)) < near<T>);
    taken.update(k, v);
    apart.push_back(empty);
    apart.back().update(k, v);
    if (last == 0) continue;
    CHECK(difference(taken.read(rows(in.query, last - 1, last)), rows(causal, last - 1, last)) <
          near<T>);
  }
  State both = empty;
  for (const State& each : apart) both = both.merge(each);
  State other_way = apart[0].merge(apart[1]).merge(apart[2].merge(apart[3].merge(apart[4])));
  for (const State* each : {&taken, &extended, &both, &other_way}) {
    CHECK(each->n_keys() == n);
    CHECK(difference(each->read(rows(in.query, n - 1, n)), rows(causal, n - 1, n)) < near<T>);
  }
}

template <class T>
void check_families() {
  check_family<T>(efficient_state(), [](const auto& q, const auto& k, const auto& v) {
    return efficient_attention(q, k, v, {.is_causal = true});
  });
  check_family<T>(
      efficient_state({.normalization = efficient_normalization::scaling, .scale = 0.5}),
      [](const auto& q, const auto& k, const auto& v) {
        return efficient_attention(
            q, k, v,
            {.normalization = efficient_normalization::scaling, .scale = 0.5, .is_causal = true});
      });
  for (const auto map : {linear_feature_map::elu, linear_feature_map::relu})
    check_family<T>(linear_state({.feature_map = map}),
                    [&](const auto& q, const auto& k, const auto& v) {
                      return linear_attention(q, k, v, {.feature_map = map, .is_causal = true});
                    });
  check_family<T>(cosformer_state({.max_length = 80}),
                  [](const auto& q, const auto& k, const auto& v) {
                    return cosformer_attention(q, k, v, {.max_length = 80, .is_causal = true});
                  });
  check_family<T>(
      performer_state({.features = 20, .from = {4, 4}}),
      [](const auto& q, const auto& k, const auto& v) {
        return performer_attention(q, k, v, {.features = 20, .from = {4, 4}, .is_causal = true});
      });
}

}  // namespace

TEST_CASE("a state in parts is the call over all keys") {
  check_families<float>();
  check_families<double>();
}

TEST_CASE("a state of state-space duality goes on from chunk to chunk") {
  for_both_types([](auto number) {
    using T = decltype(number);
    const sequence<T> in;
    const xt::xarray<double> decay = -0.1 * xt::abs(normal<double>({heads, n}, 4));
    const auto whole = ssd(in.query, in.key, in.value, decay);
    ssd_state taken, extended;
    for (std::size_t part = 0; part + 1 < part_ends.size(); ++part) {
      const std::size_t first = part_ends[part], last = part_ends[part + 1];
      const auto q = rows(in.query, first, last), k = rows(in.key, first, last),
                 v = rows(in.value, first, last);
      const auto seen = extended.extend(q, k, v, rows(decay, first, last));
      CHECK(difference(seen, rows(whole, first, last)) < 10 * near<T>);
      taken.update(k, v, rows(decay, first, last));
      if (last > 0)
        CHECK(difference(taken.read(rows(in.query, last - 1, last)), rows(whole, last - 1, last)) <
              10 * near<T>);
    }
    CHECK(taken.n_keys() == n);
  });
}

TEST_CASE("groups of query heads read the state of one head") {
  const auto q = normal<double>({4, n, dim}, 1), k = normal<double>({heads, n, dim}, 2),
             v = normal<double>({heads, n, value_dim}, 3);
  linear_state state({.enable_gqa = true});
  const auto seen = state.extend(rows(q, 0, 9), rows(k, 0, 9), rows(v, 0, 9));
  const auto whole = linear_attention(q, k, v, {.is_causal = true, .enable_gqa = true});
  CHECK(difference(seen, rows(whole, 0, 9)) < 1e-12);
  CHECK(difference(state.extend(rows(q, 9, n), rows(k, 9, n), rows(v, 9, n)), rows(whole, 9, n)) <
        1e-12);
  CHECK(difference(state.read(rows(q, n - 1, n)), rows(whole, n - 1, n)) < 1e-12);
}

TEST_CASE("a chunk in float32 reads sums that float32 would not multiply") {
  const xt::xarray<float> ones = xt::ones<float>({4, 2}), none = xt::zeros<float>({4, 2});
  const xt::xarray<float> tiny = 1e-30f * ones;
  linear_state state({.feature_map = linear_feature_map::relu});
  state.update(tiny, ones);
  CHECK(difference(state.extend(tiny, none, none), ones) < 1e-6);
}

TEST_CASE("a call that throws leaves the state as it was") {
  const sequence<float> in;
  bool stop = false;
  const xt::xarray<float> x = xt::zeros<float>({1, 400000, 64});
  efficient_state state({.num_threads = 1, .interrupted = [&] { return stop; }});
  const auto first = rows(x, 0, 3);
  state.update(first, first);
  const auto before = state.read(first);
  stop = true;
  CHECK_THROWS_AS(state.extend(x, x, x), interrupted);
  CHECK(refusal([&] { state.update(in.key, in.value); }) != "no error");
  CHECK(state.n_keys() == 3);
  stop = false;
  CHECK(identical(state.read(first), before));
}

TEST_CASE("states refuse what does not fit them") {
  const xt::xarray<float> x = xt::ones<float>({2, 5, 4}), narrow = xt::ones<float>({2, 5, 3});
  linear_state state;
  CHECK(refusal([&] { state.read(x); }) ==
        "the state holds no keys yet; update(key, value) comes before read(query)");
  state.update(x, narrow);
  CHECK(refusal([&] { state.update(x, x); }) ==
        "key and value must have the heads and dimensions of the first update, key (2, n, 4) and "
        "value (2, n, 3), got key (2, n, 4) and value (2, n, 4)");
  CHECK(refusal([&] { state.read(narrow); }) ==
        "query and key must have the same last dimension (head_dim), got 3 and 4");
  CHECK(refusal([&] { state.extend(rows(x, 0, 2), x, narrow); }) ==
        "query and key must have the same number of rows, got 2 and 5");
  CHECK(
      refusal([&] { state.merge(linear_state().update(x, x)); }) ==
      "the states must have the same shapes, got key (2, n, 4) and value (2, n, 3), and key (2, n, "
      "4) and value (2, n, 4)");
  CHECK(refusal([&] { linear_state({.enable_gqa = true}).update(x, rows(x, 0, 5)); }) ==
        "no error");
  const auto one = xt::view(x, xt::range(0, 1));
  CHECK(refusal([&] { linear_state({.enable_gqa = true}).update(x, one); }) ==
        "key and value of a state must have the same heads, got 2 and 1");
  CHECK(refusal([] { linear_state({.is_causal = true}); }) ==
        "a state has no causal form: its queries see all keys so far, and those of extend() "
        "up to their own; got is_causal = true");
  CHECK(refusal([] { linear_state({.num_threads = -2}); }) ==
        "num_threads must be at least 1, or 0 for the default, got -2");
  CHECK(state.n_keys() == 5);
}

TEST_CASE("states with positions, directions or decays refuse more") {
  const xt::xarray<float> x = xt::ones<float>({2, 5, 4});
  CHECK(refusal([] { cosformer_state(); }) == "max_length must be at least 1, got 0");
  cosformer_state turned({.max_length = 8});
  turned.update(x, x);
  CHECK(refusal([&] { turned.update(x, x); }) ==
        "max_length must be at least the number of positions, 10, got 8");
  CHECK(refusal([&] { turned.merge(turned); }) ==
        "max_length must be at least the number of positions, 10, got 8");
  CHECK(refusal([&] { turned.merge(cosformer_state({.max_length = 9})); }) ==
        "the states must have the same max_length, got 8 and 9");
  using scaled = efficient_state;
  CHECK(refusal([] {
          scaled().merge(scaled({.normalization = efficient_normalization::scaling}));
        }) == "the states must have the same normalization, got softmax and scaling");
  CHECK(refusal([] { scaled({.scale = 0.5}).merge(scaled()); }) ==
        "the states must have the same scale, got 0.5 and 1");
  CHECK(refusal([] {
          linear_state().merge(linear_state({.feature_map = linear_feature_map::relu}));
        }) == "the states must have the same feature_map, got different ones");
  const performer_state many({.features = 256});
  CHECK(refusal([&] { many.merge(performer_state({.features = 32})); }) ==
        "the states must have the same features, got 256 and 32");
  CHECK(refusal([&] {
          many.merge(performer_state({.from = {4, 4}}));
        }) == "the states must have the same from, got different random numbers");
  performer_state drawn({.projection = xt::ones<double>({6, 3})});
  CHECK(refusal([&] { drawn.update(x, x); }) ==
        "projection must have the shape (features, head_dim) with head_dim = 4, got (6, 3)");
  ssd_state faded;
  CHECK(refusal([&] { faded.read(x); }) ==
        "the state holds no keys yet; update(key, value, log_decay) comes before read(query)");
  faded.update(x, x, -1);
  CHECK(refusal([&] { faded.update(x, rows(x, 0, 4), -1); }) ==
        "key and value must have the same number of keys, got 5 and 4");
  const xt::xarray<float> narrow = xt::ones<float>({2, 5, 3});
  CHECK(refusal([&] { faded.update(x, narrow, -1); }) ==
        "key and value must have the heads and dimensions of the first update, (..., heads, "
        "head_dim, value_dim) = (2, 4, 4), got (2, 4, 3)");
  CHECK(refusal([&] { faded.read(narrow); }) == "query must have the keys' head_dim, 4, got 3");
  CHECK(refusal([&] { faded.update(x, x, 0.5); }) ==
        "log_decay must be finite and at most 0, got 0.5");
  CHECK(faded.n_keys() == 5);
}

}  // namespace test_linear_state
