// SPDX-License-Identifier: BSD-3-Clause
//
// entropy_curve against the oracle at every scale, and its independence of hidden keys.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "attnscale/attention.hpp"
#include "compare.hpp"

namespace test_curve {

using attnscale::attention_options;
using attnscale::entropy_curve;
using namespace testing;

namespace {

const std::vector<double> some_scales{0.35, -1.0, 0.0, 0.01, 4.0};

/// mean and variance of q . k under the oracle's weights.
struct raw_moments {
  oracle::column mean, variance, spread;
  explicit raw_moments(const oracle::expected& e) {
    mean = xt::sum(e.weights * e.raw, {1});
    const oracle::matrix centred = e.raw - oracle::as_column(mean);
    variance = xt::sum(e.weights * centred * centred, {1});
    // The kernel centres on a running maximum: bound of its sum of squares.
    const oracle::column reach = xt::amax(xt::abs(e.raw), {1});
    spread = reach * reach;
  }
};

template <class T>
void check_curve(const inputs<T>& in, const attention_options& options, oracle::setting s,
                 const std::vector<double>& scales = some_scales) {
  CAPTURE(sizeof(T));
  CAPTURE(in.key.shape(0));
  CAPTURE(in.query.shape(0));
  CAPTURE(in.query.shape(1));
  const auto seen = entropy_curve(in.query, in.key, scales, options);
  REQUIRE(seen.entropy.shape() == shape_type{in.query.shape(0), scales.size()});
  for (std::size_t k = 0; k < scales.size(); ++k) {
    CAPTURE(scales[k]);
    s.scale.fill(scales[k]);
    const auto e = oracle::attention(in.query, in.key, in.value, s);
    const bounds<T> b(e);
    const auto at = [&](const xt::xarray<T>& x) {
      return oracle::column(xt::view(x, xt::all(), k));
    };
    CHECK(worst_ratio(at(seen.entropy), e.entropy, b.entropy(e)) <= 1);
    CHECK(worst_ratio(at(seen.lse), e.lse, b.lse(e)) <= 1);
    const raw_moments raw(e);
    const double eps = bounds<T>::eps, sums = bounds<T>::sums;
    const oracle::column size = xt::sqrt(raw.spread);
    const oracle::column mean = sums + (4 * eps + 4 * b.score) * size;
    const oracle::column variance = sums + (32 * eps + 8 * b.score) * raw.spread;
    CHECK(worst_ratio(at(seen.mean), raw.mean, mean) <= 1);
    CHECK(worst_ratio(at(seen.variance), raw.variance, variance) <= 1);
  }
}

template <class T>
bool same_rows(const attnscale::entropy_curve_result<T>& a,
               const attnscale::entropy_curve_result<T>& b, std::size_t first, std::size_t last) {
  const auto rows = [&](const xt::xarray<T>& x) {
    return xt::xarray<T>(xt::view(x, xt::range(first, last)));
  };
  return identical(rows(a.entropy), rows(b.entropy)) && identical(rows(a.lse), rows(b.lse)) &&
         identical(rows(a.mean), rows(b.mean)) && identical(rows(a.variance), rows(b.variance));
}

}  // namespace

TEST_CASE("curve: sizes around lanes and tiles") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const std::size_t n : {1, 2, 3, 5, 15, 17, 63, 64, 65, 191, 192, 193, 385}) {
      const inputs<T> rows(n, 70, 8, 1), keys(9, n, 8, 1);
      check_curve(rows, {}, rows.setting());
      check_curve(keys, {}, keys.setting());
    }
    for (const std::size_t head_dim : {0, 1, 7, 33, 64}) {
      const inputs<T> in(20, 200, head_dim, 1);
      check_curve(in, {}, in.setting());
    }
  });
}

TEST_CASE("curve: empty extents and no scales") {
  const inputs<float> none(0, 5, 3, 1), no_keys(4, 0, 3, 1), in(4, 5, 3, 1);
  CHECK(entropy_curve(none.query, none.key, {1.0}).entropy.size() == 0);
  CHECK(entropy_curve(in.query, in.key, std::vector<double>{}).lse.shape() == shape_type{4, 0});
  check_curve(no_keys, {}, no_keys.setting());
}

TEST_CASE("curve: causal, mask and soft-cap") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const inputs<T> in(150, 210, 8, 1);
    oracle::setting s = in.setting();
    const xt::xarray<bool> mask = normal<double>({150, 210}, 5) < 0.3;
    s.visible = mask;
    check_curve(in, {.attn_mask = mask}, s);
    const xt::xarray<T> bias = xt::where(mask, normal<T>({150, 210}, 6), T(-oracle::infinity));
    s.bias = xt::where(mask, bias, T(0));
    s.softcap = 2;
    check_curve(in, {.attn_mask = bias, .softcap = 2}, s);
    s = in.setting();
    for (std::size_t i = 0; i < 150; ++i)
      for (std::size_t j = i + 1; j < 210; ++j) s.visible(i, j) = false;
    check_curve(in, {.is_causal = true}, s);
  });
}

TEST_CASE("curve: hidden keys leave no trace, however large") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const inputs<T> in(100, 100, 6, 1);
    const auto clean = entropy_curve(in.query, in.key, some_scales, {.is_causal = true});
    const T nan = std::numeric_limits<T>::quiet_NaN();
    for (const T bad : {T(1e15), T(-1e15), nan, std::numeric_limits<T>::infinity()}) {
      CAPTURE(bad);
      inputs<T> changed = in;
      xt::view(changed.key, 50).fill(bad);
      const auto seen = entropy_curve(changed.query, changed.key, some_scales, {.is_causal = true});
      CHECK(same_rows(clean, seen, 0, 50));
      if (!std::isfinite(bad))
        CHECK(xt::all(xt::isnan(xt::view(seen.entropy, xt::range(50, 100)))));
    }
  });
}

TEST_CASE("curve: NaN in a query reaches its row alone") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const inputs<T> in(70, 400, 6, 1);
    inputs<T> changed = in;
    changed.query(33, 2) = std::numeric_limits<T>::quiet_NaN();
    const auto clean = entropy_curve(in.query, in.key, some_scales);
    const auto seen = entropy_curve(changed.query, changed.key, some_scales);
    CHECK(same_rows(clean, seen, 0, 33));
    CHECK(same_rows(clean, seen, 34, 70));
    for (const auto* x : {&seen.entropy, &seen.lse, &seen.mean, &seen.variance})
      CHECK(xt::all(xt::isnan(xt::view(*x, 33))));
  });
}

TEST_CASE("curve: one scale agrees with attention_statistics, any number of threads agrees") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const auto q = normal<T>({2, 3, 100, 8}, 1), k = normal<T>({2, 3, 250, 8}, 2);
    const auto one = entropy_curve(q, k, {0.4}, {.num_threads = 1});
    const auto entropy = attnscale::attention_entropy(q, k, {.scale = 0.4});
    CHECK(xt::amax(xt::abs(xt::view(one.entropy, xt::all(), xt::all(), xt::all(), 0) -
                           entropy))() <= 10 * bounds<T>::sums);
    for (const int threads : {2, 3, 8}) {
      const auto many = entropy_curve(q, k, {0.4}, {.num_threads = threads});
      CHECK(identical(one.entropy, many.entropy));
      CHECK(identical(one.variance, many.variance));
    }
  });
}

}  // namespace test_curve
