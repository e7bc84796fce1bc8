// SPDX-License-Identifier: BSD-3-Clause
//
// Gradients of masks, of tables of the distance and through normalised rows, by differences of the
// loss in one direction; and the backward pass without a value.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "attnscale/attention_gradients.hpp"
#include "compare.hpp"

namespace test_option_gradients {

using attnscale::attention_gradients;
using attnscale::attention_options;
using attnscale::causal_alignment;
using attnscale::row_norm;
using attnscale::statistic;
using attnscale::wanted_gradients;
using namespace testing;
namespace laws = attnscale::laws;

namespace {

using numbers = xt::xarray<double>;

constexpr wanted_gradients everything{true, true, true};

/// A loss of the output and of the entropy, and its gradients.
struct problem {
  numbers query = normal<double>({2, 3, 7, 6}, 1), key = normal<double>({2, 1, 9, 6}, 2),
          value = normal<double>({9, 4}, 3), grad = normal<double>({2, 3, 7, 4}, 4);

  double loss(const attention_options& options) const {
    const auto rows =
        attnscale::attention_statistics(query, key, value, options, {statistic::entropy});
    return xt::sum(*rows.output * grad)() - 0.3 * xt::sum(*rows.entropy)();
  }
  auto gradients(const attention_options& options) const {
    return attention_gradients(query, key, value, grad, options, {.entropy = -0.3}, nullptr,
                               everything);
  }
};

/// Whether `gradient` matches the losses at `at` and one step to each side of it.
template <class Loss>
void check_difference(const numbers& at, const numbers& gradient, Loss loss) {
  REQUIRE(gradient.shape() == at.shape());
  const double step = 1e-6;
  const numbers way = normal<double>({at.shape().begin(), at.shape().end()}, 11);
  const numbers ahead = at + step * way, behind = at - step * way;
  const double wanted = (loss(ahead) - loss(behind)) / (2 * step);
  CHECK(std::abs(xt::sum(gradient * way)() - wanted) < 1e-7 * (1 + std::abs(wanted)));
}

}  // namespace

TEST_CASE("gradients: of a mask of numbers, where it was broadcast too") {
  const problem p;
  for (const shape_type& shape : {shape_type{2, 3, 7, 9}, {3, 1, 9}, {7, 1}, {9}}) {
    numbers mask = normal<double>(shape, 5);
    check_difference(mask, *p.gradients({.is_causal = true, .attn_mask = mask}).attn_mask,
                     [&](const numbers& x) { return p.loss({.is_causal = true, .attn_mask = x}); });
  }
  numbers hiding = normal<double>({7, 9}, 5);
  hiding(3, 2) = -std::numeric_limits<double>::infinity();
  xt::view(hiding, 4) = hiding(3, 2);
  const auto hidden = p.gradients({.attn_mask = hiding});
  CHECK((*hidden.attn_mask)(3, 2) == 0);
  for (const double part : {1.0, 0.5}) {
    numbers low = hiding;
    low(3, 2) = std::numeric_limits<double>::lowest() * part;
    xt::view(low, 4) = low(3, 2);
    const auto found = p.gradients({.attn_mask = low});
    CHECK(identical(*found.attn_mask, *hidden.attn_mask));
    CHECK(identical(found.query, hidden.query));
    CHECK(identical(found.key, hidden.key));
    CHECK(identical(found.value, hidden.value));
  }
  const xt::xarray<float> narrow = hiding;
  CHECK(p.gradients({.attn_mask = narrow}).attn_mask->shape() == hiding.shape());
  const xt::xarray<bool> boolean = xt::ones<bool>({7, 9});
  CHECK(!p.gradients({.attn_mask = boolean}).attn_mask);
  CHECK(!p.gradients({}).attn_mask);
  CHECK(!attention_gradients(p.query, p.key, p.value, p.grad, {.attn_mask = hiding}).attn_mask);
}

TEST_CASE("gradients: of tables of the distance") {
  const problem p;
  for (const shape_type& shape : {shape_type{14}, {3, 12}, {2, 1, 12}}) {
    const numbers factor = 1 + 0.2 * normal<double>(shape, 5), bias = normal<double>(shape, 6);
    const auto options = [&](const numbers& f, const numbers& b) {
      return attention_options{.scale = 0.5,
                               .causal = causal_alignment::bottom_right,
                               .key_lengths = xt::xarray<int>{8, 9},
                               .distance_scale = f,
                               .distance_bias = b};
    };
    const auto found = p.gradients(options(factor, bias));
    check_difference(factor, *found.distance_scale,
                     [&](const numbers& x) { return p.loss(options(x, bias)); });
    check_difference(bias, *found.distance_bias,
                     [&](const numbers& x) { return p.loss(options(factor, x)); });
  }
}

TEST_CASE("gradients: of what a function of the distance returned, and under a law of it") {
  const problem p;
  const numbers given = 1 + 0.2 * normal<double>({15}, 5);
  const auto options = [&](const numbers& x) {
    return attention_options{.scale = laws::scale_invariant{2},
                             .distance_scale = [x](const auto&) { return x; }};
  };
  check_difference(given, *p.gradients(options(given)).distance_scale,
                   [&](const numbers& x) { return p.loss(options(x)); });
}

TEST_CASE("gradients: tables without pairs have zeros") {
  const xt::xarray<double> x = xt::zeros<double>({0, 4}), v = xt::zeros<double>({5, 4});
  const numbers table = xt::ones<double>({6});
  const auto found =
      attention_gradients(x, v, v, x, {.distance_bias = table}, {}, nullptr, everything);
  CHECK(*found.distance_bias == numbers(xt::zeros<double>({6})));
}

TEST_CASE("gradients: through normalised rows, 0 for rows of zeros") {
  problem p;
  for (const row_norm each : {row_norm::l2, row_norm::rms}) {
    const attention_options options{.scale = 2.0, .qk_norm = each};
    const auto found = p.gradients(options);
    check_difference(p.query, found.query, [&](const numbers& x) {
      problem moved = p;
      moved.query = x;
      return moved.loss(options);
    });
    check_difference(p.key, found.key, [&](const numbers& x) {
      problem moved = p;
      moved.key = x;
      return moved.loss(options);
    });
  }
  xt::view(p.query, 1, 2, 3) = 0;
  const auto found = p.gradients({.qk_norm = row_norm::l2});
  const numbers row = xt::view(found.query, 1, 2, 3);
  CHECK(row == numbers(xt::zeros<double>({6})));
}

TEST_CASE("gradients: without a value, those of statistics alone") {
  const problem p;
  const numbers none = xt::zeros<double>({2, 3, 7, 4});
  const attention_options options{.is_causal = true, .num_threads = 1};
  const auto with = attention_gradients(p.query, p.key, p.value, none, options, {.entropy = -0.3});
  const auto without = attention_gradients(p.query, p.key, options, {.entropy = -0.3});
  CHECK(xt::allclose(with.query, without.query, 1e-13, 1e-15));
  CHECK(xt::allclose(with.key, without.key, 1e-13, 1e-15));
  CHECK(without.value.size() == 0);
  const auto rows = attnscale::attention_statistics(p.query, p.key, options);
  const auto saved = attention_gradients(p.query, p.key, options, {.entropy = -0.3}, &rows);
  CHECK(identical(saved.query, without.query));
  CHECK(refusal([&] { attention_gradients(p.query, p.key, {}, {}); }) ==
        "grad_output or the gradient of a statistic must be given, got none of them");
}

TEST_CASE("gradients: a query with a NaN that sees no key gives its scale nothing") {
  problem p;
  xt::view(p.query, 0, 0, 0) = std::numeric_limits<double>::quiet_NaN();
  const auto found = p.gradients({.window = {.right = 0}, .key_lengths = xt::xarray<int>{0, 9}});
  CHECK(found.scale(0, 0, 0) == 0);
  p.query = normal<double>({2, 3, 7, 6}, 1);
  xt::view(p.query, 1, 0, 4) = std::numeric_limits<double>::quiet_NaN();
  CHECK(std::isnan(p.gradients({.key_lengths = xt::xarray<int>{0, 9}}).scale(1, 0, 4)));
}

TEST_CASE("gradients: of a parameter of a law, by the scales that it gives") {
  const problem p;
  const auto under = [](double s) { return attention_options{.scale = laws::ssmax{.s = s}}; };
  const auto found = p.gradients(under(0.5));
  // (s ln(9) + b) / sqrt(6): the derivative is the same for every row.
  const numbers at{0.5}, gradient{xt::sum(found.scale)() * std::log(9) / std::sqrt(6)};
  check_difference(at, gradient, [&](const numbers& s) { return p.loss(under(s(0))); });
}

TEST_CASE("gradients: weights over a sum that has no inverse in float have gradients in double") {
  const xt::xarray<float> q({3, 4}, 1e-20F), v = normal<float>({3, 4}, 1);
  for (const auto& each : {attnscale::normalizers::relu(), attnscale::normalizers::softpick(0)}) {
    const attention_options options{.normalizer = each};
    CHECK(std::isnan(attention_gradients(q, q, v, v, options).query(0, 0)));
    const numbers wide = q, values = v;
    const auto found = attention_gradients(wide, wide, values, values, options);
    CHECK(std::isfinite(found.query(0, 0)));
  }
}

}  // namespace test_option_gradients
