// SPDX-License-Identifier: BSD-3-Clause
//
// solve_scale: the oracle's entropy at the scale found, targets out of reach, refusals.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "attnscale/solve_scale.hpp"
#include "compare.hpp"

namespace test_solve {

using attnscale::attention_options;
using attnscale::solve_scale;
using namespace testing;

namespace {

/// Checks that the oracle meets the target at the scale found, to the tolerance and the rounding of
/// scores.
template <class T>
void check_solution(const inputs<T>& in, double target, const attention_options& options,
                    oracle::setting s) {
  CAPTURE(sizeof(T));
  CAPTURE(in.query.shape(0));
  CAPTURE(in.key.shape(0));
  CAPTURE(target);
  const auto found = solve_scale(in.query, in.key, target, options);
  REQUIRE(found.scale.shape() == shape_type{in.query.shape(0)});
  s.scale = xt::where(xt::isinf(found.scale), 0.0, found.scale);
  const auto e = oracle::attention(in.query, in.key, in.value, s);
  const oracle::column bound = bounds<T>(e).entropy(e) + (sizeof(T) == 8 ? 1e-9 : 1e-6);
  const oracle::column highest = xt::log(xt::maximum(xt::cast<double>(e.n_visible), 1.0));
  for (std::size_t i = 0; i < in.query.shape(0); ++i) {
    CAPTURE(i);
    const bool reachable = target <= highest(i) && highest(i) > 0;
    CHECK(found.feasible(i) == reachable);
    CHECK(found.converged(i) == reachable);
    CHECK(std::abs(double(found.highest(i)) - highest(i)) < 1e-6);
    if (reachable) CHECK(std::abs(e.entropy(i) - target) <= bound(i));
    if (!reachable) CHECK(found.scale(i) == 0);
  }
}

}  // namespace

TEST_CASE("solve: sizes around lanes and tiles") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const std::size_t n : {1, 2, 3, 5, 15, 17, 63, 64, 65, 191, 192, 193, 385}) {
      const inputs<T> rows(n, 70, 8, 1), keys(9, n, 8, 1);
      check_solution(rows, 2.5, {}, rows.setting());
      check_solution(keys, 0.4, {}, keys.setting());
    }
  });
}

TEST_CASE("solve: causal, mask and key lengths") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const inputs<T> in(150, 210, 8, 1);
    oracle::setting s = in.setting();
    const xt::xarray<bool> mask = normal<double>({150, 210}, 5) < 0.3;
    s.visible = mask;
    check_solution(in, 3.0, {.attn_mask = mask}, s);
    const xt::xarray<T> hides = xt::where(mask, T(0), T(-oracle::infinity));
    check_solution(in, 3.0, {.attn_mask = hides}, s);
    const xt::xarray<T> low = xt::where(mask, T(0), std::numeric_limits<T>::lowest());
    check_solution(in, 3.0, {.attn_mask = low}, s);
    const xt::xarray<double> large = low / T(4);
    CHECK(refusal([&] {
            solve_scale(in.query, in.key, 1.0, {.attn_mask = large});
          }).starts_with("attn_mask of solve_scale must hold 0 and -inf only"));
    s = in.setting();
    for (std::size_t i = 0; i < 150; ++i)
      for (std::size_t j = i + 1; j < 210; ++j) s.visible(i, j) = false;
    check_solution(in, 1.5, {.is_causal = true}, s);
  });
}

TEST_CASE("solve: ties and empty extents") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const xt::xtensor<T, 2> q{{T(1)}}, k{{T(2)}, {T(1)}, {T(2)}};
    const auto below = solve_scale(q, k, 0.5);
    CHECK(std::isinf(below.scale(0)));
    CHECK(!below.feasible(0));
    CHECK(double(below.entropy(0)) == doctest::Approx(std::log(2)).epsilon(1e-6));
    const inputs<T> none(0, 5, 3, 1), no_keys(4, 0, 3, 1);
    CHECK(solve_scale(none.query, none.key, 1.0).scale.size() == 0);
    const auto empty = solve_scale(no_keys.query, no_keys.key, 0.0);
    CHECK(xt::all(xt::equal(empty.scale, 0.0)));
    CHECK(xt::all(empty.converged));
  });
}

TEST_CASE("solve: NaN and infinity reach the rows that see them") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const inputs<T> in(100, 100, 6, 1);
    const auto clean = solve_scale(in.query, in.key, 0.6, {.is_causal = true});
    for (const T bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()}) {
      inputs<T> changed = in;
      xt::view(changed.key, 50).fill(bad);
      const auto seen = solve_scale(changed.query, changed.key, 0.6, {.is_causal = true});
      for (std::size_t i = 0; i < 50; ++i) CHECK(seen.scale(i) == clean.scale(i));
      CHECK(xt::all(xt::isnan(xt::view(seen.scale, xt::range(50, 100)))));
      CHECK(xt::all(xt::isnan(xt::view(seen.entropy, xt::range(50, 100)))));
    }
  });
}

TEST_CASE("solve: any number of threads agrees, targets broadcast") {
  const auto q = normal<float>({2, 3, 100, 8}, 1), k = normal<float>({2, 3, 250, 8}, 2);
  const xt::xtensor<double, 2> targets{{1.0}, {2.0}, {3.0}};
  const auto one = solve_scale(q, k, targets, {.num_threads = 1});
  CHECK(xt::all(one.converged));
  for (const int threads : {2, 3, 8})
    CHECK(identical(one.scale, solve_scale(q, k, targets, {.num_threads = threads}).scale));
  const auto entropy = attnscale::attention_entropy(q, k, {.scale = one.scale});
  const xt::xarray<double> wanted = xt::broadcast(targets, {2, 3, 100});
  CHECK(xt::amax(xt::abs(entropy - wanted))() < 1e-5);
}

TEST_CASE("solve: what it refuses") {
  const inputs<float> in(4, 5, 3, 1);
  const auto message = [&](double target, const attention_options& options, double tolerance = 0) {
    return refusal([&] { solve_scale(in.query, in.key, target, options, tolerance); });
  };
  CHECK(message(1, {.scale = 1.0}).find("got also options.scale") != std::string::npos);
  CHECK(message(1, {.softcap = 2.0}).find("takes no softcap") != std::string::npos);
  const xt::xarray<float> bias = 0.5f * xt::ones<float>({4, 5});
  CHECK(message(1, {.attn_mask = bias}).find("0 and -inf only, got 0.5") != std::string::npos);
  CHECK(message(-1, {}).find("target_entropy must be finite and at least 0") != std::string::npos);
  CHECK(message(std::nan(""), {}).find("target_entropy must be finite") != std::string::npos);
  CHECK(refusal([&] { solve_scale(in.query, in.key, {}); }) ==
        "target_entropy must be a number or an array, got none");
  CHECK(message(1, {}, -1).find("tolerance must be greater than 0") != std::string::npos);
}

TEST_CASE("solve: rows that share a scale have the target on average") {
  const auto q = normal<double>({2, 3, 20, 8}, 1), k = normal<double>({2, 1, 30, 8}, 2);
  const attention_options options{.is_causal = true, .key_lengths = xt::xarray<int>{30, 12}};
  const xt::xarray<double> target{{1.0, 1.5, 1.8}};
  const auto heads = solve_scale(q, k, target, attnscale::scale_per::head, options);
  REQUIRE(heads.scale.shape() == shape_type{2, 3});
  attention_options at = options;
  at.scale = xt::xarray<double>(xt::view(heads.scale, xt::all(), xt::all(), xt::newaxis()));
  const xt::xarray<double> mean = xt::mean(attnscale::attention_entropy(q, k, at), {2});
  for (std::size_t b = 0; b < 2; ++b)
    for (std::size_t h = 0; h < 3; ++h) {
      CHECK(std::abs(mean(b, h) - target(0, h)) < 2e-9);
      CHECK(heads.converged(b, h));
      CHECK(heads.iterations(b, h) < 20);
    }
  const auto all = solve_scale(q, k, 1.25, attnscale::scale_per::all, options);
  REQUIRE(all.scale.shape() == shape_type{});
  at.scale = all.scale();
  CHECK(std::abs(xt::mean(attnscale::attention_entropy(q, k, at))() - 1.25) < 2e-9);
  const xt::xarray<float> narrow = q;
  CHECK(std::abs(solve_scale(narrow, k, 1.25, attnscale::scale_per::all, options).scale() -
                 all.scale()) < 1e-5);
}

TEST_CASE("solve: rows without keys do not count, and targets out of reach say so") {
  const auto q = normal<double>({20, 8}, 1), k = normal<double>({30, 8}, 2);
  using attnscale::scale_per;
  const attention_options some{.window = {.left = 3, .right = 0}, .key_lengths = 10};
  const auto found = solve_scale(q, k, 0.7, scale_per::head, some);
  REQUIRE(found.scale.shape() == shape_type{});
  attention_options at = some;
  at.scale = found.scale();
  const auto entropy = attnscale::attention_entropy(q, k, at);
  CHECK(std::abs(xt::sum(entropy)() / 13 - 0.7) < 2e-9);  // 13 of 20 rows see a key
  const auto flat = solve_scale(q, k, 9.0, scale_per::all, {});
  CHECK(!flat.feasible());
  CHECK(!flat.converged());
  CHECK(flat.scale() == 0);
  CHECK(std::abs(flat.entropy() - std::log(30.0)) < 1e-12);
  const xt::xarray<double> zeros = xt::zeros<double>({3, 8});
  const auto tied = solve_scale(zeros, k, 0.5, scale_per::all, {});
  CHECK(std::isinf(tied.scale()));
  CHECK(!tied.feasible());
  CHECK(refusal([&] { solve_scale(q, k, -1.0, scale_per::all); }) ==
        "target_entropy must be finite and at least 0, got -1");
  CHECK(refusal([&] {
          solve_scale(q, k, xt::xarray<double>{1, 2}, scale_per::all);
        }) == "target_entropy must broadcast to () = (), got shape (2,)");
}

TEST_CASE("solve: options under which entropy need not fall are refused") {
  const auto q = normal<double>({5, 8}, 1);
  CHECK(refusal([&] {
          solve_scale(q, q, 1.0, {.normalizer = attnscale::normalizers::sparsemax()});
        }) == "solve_scale needs a plain softmax, got another normalizer");
  CHECK(refusal([&] {
          solve_scale(q, q, 1.0, {.distance_bias = xt::xarray<double>{0, 1, 2, 3, 4}});
        }) == "solve_scale takes no distance_bias: under it entropy need not fall with the scale");
}

}  // namespace test_solve
