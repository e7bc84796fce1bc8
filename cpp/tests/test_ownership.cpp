// SPDX-License-Identifier: BSD-3-Clause
//
// Options hold copies: what they were made from may be changed, or be gone, when they are used.
#include <doctest/doctest.h>

#include <functional>
#include <type_traits>

#include "attnscale/attention.hpp"
#include "compare.hpp"

namespace test_ownership {

using attnscale::attention_entropy;
using attnscale::attention_mask;
using attnscale::attention_options;
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

/// A mask takes another way through the kernels than is_causal, and rounds otherwise.
bool close(const entropies& a, const entropies& b) { return xt::amax(xt::abs(a - b))() < 1e-12; }

/// Options of a function whose arrays are gone when it has returned.
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

}  // namespace

TEST_CASE("options that a function returns hold all that they were made from") {
  const inputs<double> in(n, n, 8, 5);
  const auto wanted = attention_entropy(in.query, in.key, {.scale = 0.5, .is_causal = true});
  for (const auto& make : {from_container, from_view, from_adaptor}) {
    const attention_options options = make(), copy = options;
    const std::vector<double> other(n * n, 1);  // takes the memory that was given back
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

}  // namespace test_ownership
