// SPDX-License-Identifier: BSD-3-Clause
//
// Ownership of memory: options hold copies, so their sources may be changed or destroyed before
// use; results go to the caller's memory if it is given.
#include <doctest/doctest.h>

#include <functional>
#include <type_traits>

#include "attnscale/attention_into.hpp"
#include "compare.hpp"

namespace test_ownership {

using attnscale::attention_entropy;
using attnscale::attention_into;
using attnscale::attention_mask;
using attnscale::attention_options;
using attnscale::attention_outputs;
using namespace testing;

namespace {

constexpr std::size_t n = 40;

xt::xarray<bool> lower() {
  xt::xarray<bool> mask = xt::zeros<bool>({n, n});
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j <= i; ++j) mask(i, j) = true;
  return mask;
}

using entropies = xt::xarray<double>;

/// Comparison with a tolerance: a mask takes another path through the kernels than is_causal, with
/// other rounding.
bool close(const entropies& a, const entropies& b) { return xt::amax(xt::abs(a - b))() < 1e-12; }

/// Options from a function whose arrays are destroyed when it returns.
attention_options from_container() {
  const xt::xarray<bool> mask = lower();
  const xt::xarray<double> scale = 0.5 * xt::ones<double>({n});
  return {.scale = scale, .attn_mask = mask};
}

attention_options from_view() {
  const xt::xarray<bool> mask = lower();
  return {.scale = 0.5, .attn_mask = xt::view(mask, xt::all(), xt::all())};
}

attention_options from_adaptor() {
  std::vector<double> bias(n * n, -std::numeric_limits<double>::infinity());
  for (std::size_t i = 0; i < n; ++i) std::fill_n(bias.begin() + long(i * n), i + 1, 0.0);
  return {.scale = 0.5, .attn_mask = xt::adapt(bias, shape_type{n, n})};
}

/// Two heads of 5 queries and 7 keys.
template <class T>
struct two_heads {
  xt::xarray<T> query = normal<T>({2, 5, 4}, 1), key = normal<T>({2, 7, 4}, 2),
                value = normal<T>({2, 7, 3}, 3);
  /// Message with which these outputs are refused; checks that they keep their numbers.
  std::string refusal_of(const attention_outputs& into) const {
    return refusal([&] { attention_into(query, key, value, into); });
  }
};

}  // namespace

TEST_CASE("options that a function returns hold all that they were made from") {
  const inputs<double> in(n, n, 8, 5);
  const auto wanted = attention_entropy(in.query, in.key, {.scale = 0.5, .is_causal = true});
  for (const auto& make : {from_container, from_view, from_adaptor}) {
    const attention_options options = make(), copy = options;
    const std::vector<double> other(n * n, 1);  // takes the memory that was freed
    CHECK(close(attention_entropy(in.query, in.key, options), wanted));
    CHECK(close(attention_entropy(in.query, in.key, copy), wanted));
  }
}

TEST_CASE("options keep the mask that they were given, not what it became") {
  const inputs<double> in(n, n, 8, 5);
  xt::xarray<bool> mask = lower();
  const attention_options kept{.attn_mask = mask}, referring{.attn_mask = std::cref(mask)};
  const auto wanted = attention_entropy(in.query, in.key, kept);
  CHECK(identical(attention_entropy(in.query, in.key, referring), wanted));
  mask.fill(true);
  CHECK(identical(attention_entropy(in.query, in.key, kept), wanted));
  CHECK(close(attention_entropy(in.query, in.key, referring), attention_entropy(in.query, in.key)));
}

TEST_CASE("std::cref takes containers and views of any strides, and no temporaries") {
  const inputs<double> in(n, n, 8, 5);
  const xt::xarray<double> bias = normal<double>({n, n}, 9);
  const xt::xarray<double> turned = xt::transpose(bias);
  const auto view = xt::transpose(turned);
  CHECK(identical(attention_entropy(in.query, in.key, {.attn_mask = std::cref(view)}),
                  attention_entropy(in.query, in.key, {.attn_mask = bias})));
  static_assert(
      std::is_constructible_v<attention_mask, std::reference_wrapper<const xt::xarray<bool>>>);
  static_assert(!std::is_constructible_v<attention_mask, std::reference_wrapper<double>>);
}

TEST_CASE_TEMPLATE("results are written to containers, pointers and views, with the same bits", T,
                   float, double) {
  const two_heads<T> in;
  const attention_options options{.is_causal = true, .softcap = 5};
  const auto wanted = attnscale::attention_statistics(in.query, in.key, in.value, options,
                                                      attnscale::all_statistics);
  xt::xarray<T> out = xt::zeros<T>({2, 5, 3});
  xt::xtensor<T, 2> lse = xt::zeros<T>({2, 5}), variance = lse;
  std::vector<T> entropy(10);
  std::vector<std::int64_t> argmax(10), visible(10);
  const shape_type rows{2, 5};
  attention_into(in.query, in.key, in.value,
                 {.output = out,
                  .lse = lse,
                  .entropy = xt::adapt(entropy.data(), 10, xt::no_ownership(), rows),
                  .score_variance = variance,
                  .n_visible = xt::adapt(visible, rows),
                  .argmax = xt::adapt(argmax, rows)},
                 options);
  CHECK(identical(xt::xarray<T>(out), xt::xarray<T>(*wanted.output)));
  CHECK(identical(xt::xarray<T>(lse), xt::xarray<T>(*wanted.lse)));
  CHECK(identical(xt::xarray<T>(variance), xt::xarray<T>(*wanted.score_variance)));
  CHECK(std::equal(entropy.begin(), entropy.end(), wanted.entropy->begin()));
  CHECK(std::equal(argmax.begin(), argmax.end(), wanted.argmax->begin()));
  CHECK(std::equal(visible.begin(), visible.end(), wanted.n_visible->begin()));
  std::fill(entropy.begin(), entropy.end(), T(9));
  attention_into(in.query, in.key, {.entropy = xt::adapt(entropy, rows)}, options);
  CHECK(std::equal(entropy.begin(), entropy.end(), wanted.entropy->begin()));
}

TEST_CASE("an output has any strides, and nothing beside it is written") {
  const two_heads<double> in;
  const xt::xarray<double> wanted = attnscale::attention(in.query, in.key, in.value);
  xt::xarray<double> all(shape_type{4, 6, 9},
                         -7.0);  // (heads, channels, queries), with a margin
  auto part = xt::view(all, xt::range(1, 3), xt::range(4, 1, -1), xt::range(0, 9, 2));
  auto turned = xt::transpose(part, {0, 2, 1});
  attention_into(in.query, in.key, in.value, {.output = turned});
  CHECK(identical(xt::xarray<double>(turned), wanted));
  for (double& x : part) x = -7;
  CHECK(xt::all(xt::equal(all, -7.0)));
  // The layout of Python's "bshd" is a transposed view, both of inputs and of outputs.
  const xt::xarray<double> query = xt::transpose(in.query, {1, 0, 2});
  xt::xarray<double> out(shape_type{5, 2, 3}, 0.0);
  attention_into(xt::transpose(query, {1, 0, 2}), in.key, in.value,
                 {.output = xt::transpose(out, {1, 0, 2})});
  CHECK(identical(xt::xarray<double>(xt::transpose(out, {1, 0, 2})), wanted));
}

TEST_CASE("an output is rounded to its own type") {
  const two_heads<float> in;
  const auto wanted = attnscale::attention(in.query, in.key, in.value);
  xt::xarray<attnscale::float16> narrow(shape_type{2, 5, 3});
  xt::xarray<double> wide(shape_type{2, 5, 3});
  attention_into(in.query, in.key, in.value, {.output = narrow});
  attention_into(in.query, in.key, in.value, {.output = wide});
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    CHECK(float(narrow.flat(i)) == float(attnscale::float16(wanted.flat(i))));
    CHECK(wide.flat(i) == double(wanted.flat(i)));
  }
}

TEST_CASE("outputs that do not fit are refused, and keep their numbers") {
  const two_heads<float> in;
  xt::xarray<float> out(shape_type{2, 5, 3}, 9.0F), rows(shape_type{2, 5}, 9.0F),
      columns(shape_type{5, 2}, 9.0F);
  xt::xarray<double> wide(shape_type{2, 5}, 9.0);
  xt::xarray<std::int64_t> counts(shape_type{2, 5}, 9), indices(shape_type{2, 5, 3}, 9);
  CHECK(in.refusal_of({.output = rows}) == "output must have shape (2, 5, 3), got (2, 5)");
  CHECK(in.refusal_of({.output = out, .lse = out}) == "lse must have shape (2, 5), got (2, 5, 3)");
  CHECK(in.refusal_of({.entropy = wide}) == "entropy must hold float, got double");
  CHECK(in.refusal_of({.argmax = rows}) == "argmax must hold std::int64_t, got float");
  CHECK(in.refusal_of({.lse = counts}) == "lse must hold float, got std::int64_t");
  CHECK(in.refusal_of({.output = indices}) ==
        "output must hold a floating-point type, got std::int64_t");
  CHECK(in.refusal_of({.lse = xt::transpose(columns)}) ==
        "lse must be row-major without gaps, got the stride 2 where 1 is needed");
  CHECK(in.refusal_of({.output = xt::strided_view(rows, {xt::newaxis()})}).starts_with("output"));
  CHECK(in.refusal_of({.output = out, .support = counts}) == "no error");
  CHECK(refusal([&] {
          attention_into(in.query, in.key, in.value, {.output = out, .sink_weight = rows},
                         {.normalizer = attnscale::normalizers::sigmoid(0)});
        }) == "this normalizer has no such statistic: sink_weight");
  CHECK(refusal([&] { attention_into(in.query, in.key, {.output = out}); }) ==
        "output needs a value, got none");
  CHECK(xt::all(xt::equal(rows, 9.0F)));
  CHECK(xt::all(xt::equal(columns, 9.0F)));
}

TEST_CASE("outputs share no memory with what is read, with each other or with themselves") {
  xt::xarray<float> all = normal<float>({2, 5, 12}, 4);
  const auto channels = [&](int from) {
    return xt::view(all, xt::all(), xt::all(), xt::range(from, from + 4));
  };
  const auto in = channels(0);
  const xt::xarray<float> before = all, x = in;
  xt::xarray<float> rows(shape_type{2, 5}, 9.0F);
  const char* const rule = " in memory, but it does";
  const auto overlap = [&](const char* what) { return std::string(what) + rule; };
  for (const int from : {0, 1, 3})
    CHECK(refusal([&] { attention_into(x, x, in, {.output = channels(from)}); }) ==
          overlap("output must not overlap value"));
  CHECK(refusal([&] { attention_into(in, x, {.entropy = rows, .max_score = rows}); }) ==
        overlap("max_score must not overlap entropy"));
  xt::xarray<float> mask(shape_type{5, 5}, 0.0F);
  auto part = xt::adapt(mask.data(), 10, xt::no_ownership(), shape_type{2, 5});
  CHECK(refusal([&] { attention_into(x, x, {.lse = part}, {.attn_mask = std::cref(mask)}); }) ==
        overlap("lse must not overlap attn_mask"));
  auto same = xt::strided_view(rows, shape_type{2, 5, 4}, std::vector<std::ptrdiff_t>{4, 0, 1}, 0,
                               xt::layout_type::dynamic);
  CHECK(refusal([&] { attention_into(x, x, x, {.output = same}); }) ==
        "output must have separate memory for each of its elements, got strides (4, 0, 1)");
  CHECK(identical(all, before));
}

TEST_CASE("an output in its own part of the rows of an argument is none of its elements") {
  xt::xarray<float> all = normal<float>({2, 5, 12}, 4);
  const auto channels = [&](int from) {
    return xt::view(all, xt::all(), xt::all(), xt::range(from, from + 4));
  };
  const xt::xarray<float> query = channels(0), value = channels(8);
  const xt::xarray<float> wanted = attnscale::attention(query, query, value);
  attention_into(channels(0), channels(0), channels(8), {.output = channels(4)});
  CHECK(identical(xt::xarray<float>(channels(4)), wanted));
  CHECK(identical(xt::xarray<float>(channels(0)), query));
  CHECK(identical(xt::xarray<float>(channels(8)), value));
  // The output takes every second number of a row, from its last number backwards.
  xt::xarray<float> pairs = normal<float>({2, 5, 8}, 4);
  const auto even = xt::view(pairs, xt::all(), xt::all(), xt::range(0, 8, 2));
  auto odd = xt::view(pairs, xt::all(), xt::all(), xt::range(7, 0, -2));
  const xt::xarray<float> x = even;
  attention_into(even, even, even, {.output = odd});
  CHECK(identical(xt::xarray<float>(odd), attnscale::attention(x, x, x)));
  CHECK(identical(xt::xarray<float>(even), x));
}

static_assert(std::constructible_from<attnscale::output_array, xt::xarray<float>&>);
static_assert(!std::constructible_from<attnscale::output_array, xt::xarray<float>>);
static_assert(!std::constructible_from<attnscale::output_array, xt::xtensor<double, 3>>);

TEST_CASE("outputs without elements are written, too") {
  const xt::xarray<float> none = xt::zeros<float>({2, 0, 4}), x = normal<float>({2, 5, 4}, 1);
  xt::xarray<float> out = xt::zeros<float>({2, 0, 4}), rows = xt::zeros<float>({2, 0});
  attention_into(none, x, x, {.output = out, .lse = rows});
  xt::xarray<float> zeros = xt::ones<float>({2, 5, 4});
  attention_into(x, none, none, {.output = zeros});
  CHECK(xt::all(xt::equal(zeros, 0.0F)));
}

}  // namespace test_ownership
