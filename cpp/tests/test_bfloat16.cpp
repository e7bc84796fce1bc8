// SPDX-License-Identifier: BSD-3-Clause
//
// Levels whose products of bfloat16 arrays are of bfloat16, too: scores keep what float32
// arithmetic promises, and weights are rounded on their way to the values.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "attnscale/attention.hpp"
#include "compare.hpp"
#include "dispatch.hpp"

namespace test_bfloat16 {

using attnscale::attention_options;
using attnscale::attention_statistics;
using attnscale::bfloat16;
using attnscale::causal_alignment;
namespace normalizers = attnscale::normalizers;
using namespace testing;

namespace {

constexpr double eps = 0x1p-7;  // from 1 to the next bfloat16

bool has_own_kernels() { return attnscale::detail::active_kernels().bfloat16 != nullptr; }

xt::xarray<float> rounded(const xt::xarray<float>& x) {
  return xt::cast<float>(xt::xarray<bfloat16>(xt::cast<bfloat16>(x)));
}

/// Inputs that bfloat16 holds.
inputs<float> bfloat16_inputs(std::size_t n_queries, std::size_t n_keys, std::size_t head_dim,
                              std::size_t value_dim) {
  inputs<float> in(n_queries, n_keys, head_dim, value_dim);
  in.query = rounded(in.query), in.key = rounded(in.key), in.value = rounded(in.value);
  return in;
}

template <class Options>
auto call(const inputs<float>& in, const Options& options) {
  const xt::xarray<bfloat16> q = xt::cast<bfloat16>(in.query), k = xt::cast<bfloat16>(in.key),
                             v = xt::cast<bfloat16>(in.value);
  return attention_statistics(q, k, v, options, attnscale::all_statistics);
}

/// Half an eps for each weight, and half of one for the output.
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
      // Weights of softpick may be negative: a row's sum of their magnitudes is at most twice.
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
