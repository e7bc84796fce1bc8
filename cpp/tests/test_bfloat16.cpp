// SPDX-License-Identifier: BSD-3-Clause
//
// Levels with bfloat16 products of bfloat16 arrays: scores keep the accuracy of float32 arithmetic,
// and weights are rounded before they multiply the values.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "attnscale/attention.hpp"
#include "attnscale/attention_gradients.hpp"
#include "compare.hpp"
#include "machine/dispatch.hpp"

namespace test_bfloat16 {

using attnscale::attention_options;
using attnscale::attention_statistics;
using attnscale::bfloat16;
using attnscale::causal_alignment;
namespace normalizers = attnscale::normalizers;
using namespace testing;

namespace {

constexpr double eps = 0x1p-7;  // distance from 1 to the next bfloat16

bool has_own_kernels() { return attnscale::detail::active_kernels().bfloat16 != nullptr; }

xt::xarray<float> rounded(const xt::xarray<float>& x) {
  return xt::cast<float>(xt::xarray<bfloat16>(xt::cast<bfloat16>(x)));
}

/// Inputs that bfloat16 represents exactly.
inputs<float> bfloat16_inputs(std::size_t n_queries, std::size_t n_keys, std::size_t head_dim,
                              std::size_t value_dim) {
  inputs<float> in(n_queries, n_keys, head_dim, value_dim);
  in.query = rounded(in.query), in.key = rounded(in.key), in.value = rounded(in.value);
  return in;
}

xt::xarray<bfloat16> stored(const xt::xarray<float>& x) { return xt::cast<bfloat16>(x); }

template <class Options>
auto call(const inputs<float>& in, const Options& options) {
  return attention_statistics(stored(in.query), stored(in.key), stored(in.value), options,
                              attnscale::all_statistics);
}

/// Gradients of the output times `grad`, and of 0.7 lse - 0.3 entropy.
auto gradients(const inputs<float>& in, const xt::xarray<float>& grad,
               const attention_options& options) {
  return attention_gradients(stored(in.query), stored(in.key), stored(in.value), stored(grad),
                             options, {.lse = 0.7, .entropy = -0.3});
}

/// Half an eps for each weight, and half an eps for the output.
oracle::matrix output_bound(const oracle::expected& e) {
  return bounds<float>(e).output(e) + eps * e.absolute_output;
}

void check(const inputs<float>& in, const attention_options& options,
           const oracle::setting& setting) {
  CAPTURE(in.query.shape(0));
  CAPTURE(in.key.shape(0));
  CAPTURE(in.query.shape(1));
  CAPTURE(in.value.shape(1));
  const oracle::expected e = oracle::attention(in.query, in.key, in.value, setting);
  const auto seen = call(in, options);
  CHECK(worst_ratio(xt::xarray<float>(xt::cast<float>(*seen.output)), e.output, output_bound(e)) <=
        1);
  const bounds<float> b(e);
  CHECK(worst_ratio(*seen.lse, e.lse, b.lse(e)) <= 1);
  CHECK(worst_ratio(*seen.entropy, e.entropy, b.entropy(e)) <= 1);
  CHECK(worst_ratio(*seen.max_score, e.max_score, b.max_score(e)) <= 1);
  CHECK(worst_ratio(*seen.mean_score, e.mean_score, b.mean_score(e)) <= 1);
  CHECK(worst_ratio(*seen.score_variance, e.score_variance, b.score_variance(e)) <= 1);
  CHECK(worst_ratio(*seen.max_weight, e.max_weight, b.weight(e, e.max_weight)) <= 1);
  CHECK(xt::xarray<std::int64_t>(e.n_visible) == *seen.n_visible);
}

/// Compares the gradients of all arrays, with bounds from their terms without signs: rounding a
/// weight or the gradient of a score costs half an eps of those, and so does rounding the result.
void check_gradients(const inputs<float>& in, const attention_options& options,
                     const oracle::setting& setting) {
  CAPTURE(in.query.shape(0));
  CAPTURE(in.key.shape(0));
  CAPTURE(in.query.shape(1));
  const xt::xarray<float> grad = rounded(normal<float>({in.query.shape(0), in.value.shape(1)}, 9));
  const auto found = gradients(in, grad, options);
  const auto e = oracle::attention(in.query, in.key, in.value, setting);
  const oracle::matrix q = in.query, k = in.key, v = in.value, g = grad;
  const oracle::matrix log_p = xt::log(xt::where(e.weights > 0, e.weights, 1.0));
  const oracle::matrix dp = oracle::product_transposed(g, v);
  const oracle::column d = xt::sum(g * e.output, {1});
  const oracle::matrix ds =
      e.weights * (dp - oracle::as_column(d) + 0.7 + 0.3 * (log_p + oracle::as_column(e.entropy)));
  const oracle::matrix terms = oracle::product_transposed(xt::abs(g), xt::abs(v));
  const oracle::column most = xt::sum(e.weights * terms, {1});
  const oracle::matrix size = e.weights * (terms + oracle::as_column(most) + 0.7 +
                                           0.3 * (xt::abs(log_p) + oracle::as_column(e.entropy)));
  const oracle::matrix scaled = ds * oracle::as_column(setting.scale);
  const oracle::column scale_size = xt::abs(setting.scale);
  const oracle::matrix sizes = size * oracle::as_column(scale_size);
  const auto within = [](const auto& seen, const oracle::matrix& wanted, const oracle::matrix& of) {
    return worst_ratio(xt::xarray<float>(xt::cast<float>(seen)), wanted,
                       oracle::matrix(eps * of + 1e-30)) <= 1;
  };
  const oracle::matrix columns = xt::transpose(scaled), column_sizes = xt::transpose(sizes),
                       weights = xt::transpose(e.weights);
  CHECK(within(found.query, oracle::product(scaled, k), oracle::product(sizes, xt::abs(k))));
  CHECK(within(found.key, oracle::product(columns, q), oracle::product(column_sizes, xt::abs(q))));
  CHECK(within(found.value, oracle::product(weights, g), oracle::product(weights, xt::abs(g))));
}

/// Rows and keys on both sides of a vector, a register, a tile, a block.
constexpr std::array<std::array<std::size_t, 4>, 9> shapes{{{9, 1, 1, 1},
                                                            {16, 15, 2, 3},
                                                            {17, 17, 31, 16},
                                                            {64, 33, 32, 17},
                                                            {65, 193, 33, 32},
                                                            {129, 241, 64, 64},
                                                            {128, 255, 80, 48},
                                                            {200, 448, 128, 33},
                                                            {12, 8300, 16, 8}}};

}  // namespace

TEST_CASE("bfloat16: every size, full and causal") {
  for (const auto& [n_queries, n_keys, head_dim, value_dim] : shapes) {
    const auto in = bfloat16_inputs(n_queries, n_keys, head_dim, value_dim);
    check(in, {}, in.setting());
    oracle::setting s = in.setting();
    for (std::size_t i = 0; i < n_queries; ++i)
      for (std::size_t j = 0; j < n_keys; ++j) s.visible(i, j) = j + n_queries <= i + n_keys;
    check(in, {.causal = causal_alignment::bottom_right}, s);
  }
}

TEST_CASE("bfloat16: masks, soft-caps and scales of any sign") {
  const auto in = bfloat16_inputs(100, 261, 40, 24);
  oracle::setting window = in.setting(), masked = window, biased = window, capped = window,
                  negative = window;
  xt::xarray<bool> mask = normal<float>({100, 261}, 7) > 0.3f;
  xt::view(mask, 5) = false;
  const xt::xarray<float> bias = normal<float>({100, 261}, 8);
  for (std::size_t i = 0; i < 100; ++i)
    for (std::size_t j = 0; j < 261; ++j) {
      window.visible(i, j) = j + 3 >= i && j <= i + 6;
      masked.visible(i, j) = mask(i, j);
      biased.bias(i, j) = bias(i, j);
    }
  capped.softcap = 1.5;
  negative.scale = -in.standard_scale() * xt::arange<double>(0, 100) / 50.0;
  check(in, {.window = {3, 6}}, window);
  check(in, {.attn_mask = mask}, masked);
  check(in, {.attn_mask = bias}, biased);
  check(in, {.softcap = 1.5}, capped);
  check(in, {.scale = xt::xarray<double>(negative.scale)}, negative);
}

TEST_CASE("bfloat16: weights of single scores") {
  const auto in = bfloat16_inputs(70, 250, 48, 32);
  for (const attnscale::normalizer_choice& rule :
       {normalizers::sigmoid(-3), normalizers::relu(), normalizers::softpick(1e-6),
        normalizers::sink(1)})
    for (const bool causal : {false, true}) {
      const attention_options options{.is_causal = causal, .normalizer = rule};
      inputs<float> magnitudes = in;
      magnitudes.value = xt::abs(in.value);
      const auto wanted = attnscale::attention(in.query, in.key, in.value, options);
      const auto largest = attnscale::attention(in.query, in.key, magnitudes.value, options);
      const xt::xarray<bfloat16> q = xt::cast<bfloat16>(in.query), k = xt::cast<bfloat16>(in.key),
                                 v = xt::cast<bfloat16>(in.value);
      const xt::xarray<float> seen = xt::cast<float>(attnscale::attention(q, k, v, options));
      // Weights of softpick may be negative: a row's sum of magnitudes is at most 2.
      CHECK(worst_ratio(seen, wanted, xt::xarray<float>(eps * (2 * xt::abs(largest) + 0.02f))) <=
            1);
    }
}

TEST_CASE("bfloat16: rows with gaps, and columns that are no neighbours") {
  const auto in = bfloat16_inputs(90, 210, 36, 20);
  const auto wanted = *call(in, attention_options{}).output;
  const auto wide = [](const xt::xarray<float>& x) {
    xt::xarray<bfloat16> result({x.shape(0), x.shape(1) + 5});
    result.fill(bfloat16(std::numeric_limits<float>::quiet_NaN()));
    xt::view(result, xt::all(), xt::range(3, 3 + x.shape(1))) = xt::cast<bfloat16>(x);
    return result;
  };
  const auto part = [](const auto& x) {
    return xt::view(x, xt::all(), xt::range(3, x.shape(1) - 2));
  };
  const auto q = wide(in.query), k = wide(in.key), v = wide(in.value);
  CHECK(identical(wanted, attnscale::attention(part(q), part(k), part(v))));
  const xt::xarray<bfloat16, xt::layout_type::column_major> cq = xt::cast<bfloat16>(in.query),
                                                            ck = xt::cast<bfloat16>(in.key),
                                                            cv = xt::cast<bfloat16>(in.value);
  CHECK(identical(wanted, attnscale::attention(cq, ck, cv)));
}

TEST_CASE("bfloat16: channels on both sides of a pair, a vector, a register") {
  for (const std::size_t dim : {1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 256}) {
    const auto in = bfloat16_inputs(37, 61, dim, dim);
    oracle::setting s = in.setting();
    check(in, {}, s);
    check_gradients(in, {}, s);
    for (std::size_t i = 0; i < 37; ++i)
      for (std::size_t j = 0; j < 61; ++j) s.visible(i, j) = j <= i;
    check(in, {.is_causal = true}, s);
    check_gradients(in, {.is_causal = true}, s);
  }
}

TEST_CASE("bfloat16: a handful of queries") {
  for (std::size_t n_queries = 1; n_queries <= 17; ++n_queries) {
    const auto in = bfloat16_inputs(n_queries, 299, 48, 40);
    check(in, {}, in.setting());
  }
}

TEST_CASE("bfloat16: gradients of every size, full and causal") {
  for (const auto& [n_queries, n_keys, head_dim, value_dim] : shapes) {
    if (n_queries * n_keys > 50000) continue;  // the others have whole tiles and blocks, too
    const auto in = bfloat16_inputs(n_queries, n_keys, head_dim, value_dim);
    check_gradients(in, {}, in.setting());
    oracle::setting s = in.setting();
    for (std::size_t i = 0; i < n_queries; ++i)
      for (std::size_t j = 0; j < n_keys; ++j) s.visible(i, j) = j + n_queries <= i + n_keys;
    check_gradients(in, {.causal = causal_alignment::bottom_right}, s);
  }
}

TEST_CASE("bfloat16: what a hidden key holds changes no bit, of results and of gradients") {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  const auto clean = bfloat16_inputs(90, 230, 33, 18);
  xt::xarray<bool> mask = normal<float>({90, 230}, 7) > 0.3f;
  for (const std::size_t hidden : {0, 1, 191, 192, 229}) xt::view(mask, xt::all(), hidden) = false;
  const auto grad = rounded(normal<float>({90, 18}, 9));
  const attention_options options{.attn_mask = mask};
  const auto wanted = call(clean, options);
  const auto wanted_gradients = gradients(clean, grad, options);
  for (const float bad : {nan, infinity, -infinity}) {
    auto in = clean;
    for (const std::size_t hidden : {0, 1, 191, 192, 229})
      xt::view(in.key, hidden) = xt::view(in.value, hidden) = bad;
    const auto seen = call(in, options);
    CHECK(identical(*seen.output, *wanted.output));
    CHECK(identical(*seen.lse, *wanted.lse));
    CHECK(identical(*seen.entropy, *wanted.entropy));
    const auto found = gradients(in, grad, options);
    CHECK(identical(found.query, wanted_gradients.query));
    CHECK(identical(found.key, wanted_gradients.key));
    CHECK(identical(found.value, wanted_gradients.value));
  }
}

TEST_CASE("bfloat16: NaN reaches every row that sees its key, and no other one") {
  auto in = bfloat16_inputs(70, 70, 16, 16);
  in.key(40, 3) = std::numeric_limits<float>::quiet_NaN();
  in.value(20, 5) = std::numeric_limits<float>::quiet_NaN();
  const auto seen = call(in, attention_options{.is_causal = true});
  for (std::size_t i = 0; i < 70; ++i) {
    CHECK(std::isnan((*seen.lse)(i)) == (i >= 40));
    for (std::size_t c = 0; c < 16; ++c)
      CHECK(std::isnan(static_cast<float>((*seen.output)(i, c))) ==
            (i >= 40 || (i >= 20 && c == 5)));
  }
}

TEST_CASE("bfloat16: the same bits for any number of threads") {
  const auto q = stored(normal<float>({6, 300, 24}, 1)), k = stored(normal<float>({2, 401, 24}, 2)),
             v = stored(normal<float>({2, 401, 8}, 3)), g = stored(normal<float>({6, 300, 8}, 4));
  attention_options options{.is_causal = true, .enable_gqa = true, .num_threads = 1};
  const auto one = attention_statistics(q, k, v, options, attnscale::all_statistics);
  const auto back = attention_gradients(q, k, v, g, options, {.entropy = 1.0});
  for (const int threads : {2, 3, 8}) {
    options.num_threads = threads;
    const auto more = attention_statistics(q, k, v, options, attnscale::all_statistics);
    CHECK(identical(*one.output, *more.output));
    CHECK(identical(*one.entropy, *more.entropy));
    const auto again = attention_gradients(q, k, v, g, options, {.entropy = 1.0});
    CHECK(identical(back.query, again.query));
    CHECK(identical(back.key, again.key));
    CHECK(identical(back.value, again.value));
  }
}

TEST_CASE("bfloat16: a value under the normal numbers is zero in a product, and -0 is 0") {
  auto in = bfloat16_inputs(20, 40, 8, 8);
  in.value.fill(0x1p-130f);
  const float expected = has_own_kernels() ? 0.0f : 0x1p-130f;
  const auto seen = call(in, attention_options{});
  for (const bfloat16 x : *seen.output)
    CHECK(std::abs(static_cast<float>(x) - expected) <= 0x1p-133f);
  auto zero = bfloat16_inputs(20, 40, 8, 8), negative = zero;
  zero.query.fill(0.0f), negative.query.fill(-0.0f);
  CHECK(identical(*call(zero, attention_options{}).output,
                  *call(negative, attention_options{}).output));
}

TEST_CASE("bfloat16: numbers below the normal ones are zero in a product") {
  if (!has_own_kernels()) return;
  auto in = bfloat16_inputs(20, 40, 8, 8);
  const auto zero_out = [](xt::xarray<float> x) { return xt::xarray<float>(0 * x); };
  auto tiny = in;
  tiny.query = zero_out(in.query) + 0x1p-130f;
  tiny.key = zero_out(in.key) + 0x1p120f;  // 8 products of 2^-10 in exact arithmetic
  auto none = tiny;
  none.query = zero_out(in.query);
  CHECK(identical(*call(tiny, attention_options{}).lse, *call(none, attention_options{}).lse));
}

}  // namespace test_bfloat16
