// SPDX-License-Identifier: BSD-3-Clause
//
// Accuracy on difficult data, extreme scores, and propagation of NaN and infinity.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <tuple>
#include <vector>

#include "attnscale/attention.hpp"
#include "compare.hpp"

namespace test_numerics {

using attnscale::attention;
using attnscale::attention_options;
using attnscale::attention_statistics;
using namespace testing;

namespace {

template <class T>
constexpr T not_a_number = std::numeric_limits<T>::quiet_NaN();
template <class T>
constexpr T infinite = std::numeric_limits<T>::infinity();

/// Queries of head_dim 1, so that the scores are the keys; long double oracle. Returns the largest
/// |output - sum p v| / (eps sum p |v|) over all channels and shapes of queries, and checks the
/// entropy.
template <class T>
double output_error(const std::vector<double>& scores,
                    const std::vector<std::vector<double>>& channels,
                    const std::vector<shape_type>& shapes) {
  const std::size_t n = scores.size(), value_dim = channels.size();
  xt::xarray<T> key = xt::zeros<T>({n, std::size_t{1}}), value = xt::zeros<T>({n, value_dim});
  std::vector<long double> sum(value_dim), absolute(value_dim);
  long double total = 0, mean = 0;
  for (std::size_t j = 0; j < n; ++j) {
    key(j, 0) = static_cast<T>(scores[j]);
    // Where long double is emulated, an exponential costs more than everything else here.
    const long double score = key(j, 0), p = score == 0 ? 1 : std::exp(score);
    total += p, mean += p * score;
    for (std::size_t c = 0; c < value_dim; ++c) {
      const long double v = value(j, c) = static_cast<T>(channels[c][j]);
      sum[c] += p * v, absolute[c] += p * std::abs(v);
    }
  }
  const double entropy = static_cast<double>(std::log(total) - mean / total);
  double worst = 0;
  for (const shape_type& rows : shapes) {
    const xt::xarray<T> query = xt::ones<T>(rows);
    const auto seen = attention_statistics(query, key, value, {.scale = 1.0});
    for (std::size_t i = 0; i < seen.entropy->size(); ++i) {
      for (std::size_t c = 0; c < value_dim; ++c) {
        const long double x = seen.output->flat(i * value_dim + c);
        const double error = std::abs(static_cast<double>(x - sum[c] / total));
        worst = std::max(worst, error * static_cast<double>(total / absolute[c]) / bounds<T>::eps);
      }
      CHECK(std::abs(seen.entropy->flat(i) - entropy) <= 4 * bounds<T>::sums);
    }
  }
  return worst;
}

/// Runs `change` on a copy of the inputs; rows with `sees` have to be non-finite, the others
/// bit-identical to `before`, the run without the change.
template <class T>
void check_reach(const inputs<T>& in, const attention_options& options,
                 const attnscale::attention_statistics_result<T>& before,
                 const std::function<void(inputs<T>&)>& change,
                 const std::function<bool(std::size_t)>& sees, bool in_scores) {
  inputs<T> changed = in;
  change(changed);
  const auto after = attention_statistics(changed.query, changed.key, changed.value, options,
                                          attnscale::all_statistics);
  std::size_t wrong_rows = 0, wrong_statistics = 0;
  for (std::size_t i = 0; i < in.query.shape(0); ++i) {
    const xt::xarray<T> old_row = xt::view(*before.output, i), row = xt::view(*after.output, i);
    const bool finite = xt::any(xt::isfinite(row));
    wrong_rows += sees(i) ? finite : !identical(old_row, row);
    for (const auto field : {&attnscale::attention_statistics_result<T>::lse,
                             &attnscale::attention_statistics_result<T>::entropy,
                             &attnscale::attention_statistics_result<T>::mean_score,
                             &attnscale::attention_statistics_result<T>::score_variance,
                             &attnscale::attention_statistics_result<T>::concentration,
                             &attnscale::attention_statistics_result<T>::max_weight,
                             &attnscale::attention_statistics_result<T>::renyi2,
                             &attnscale::attention_statistics_result<T>::min_score,
                             &attnscale::attention_statistics_result<T>::max_score}) {
      const T x = (*(after.*field))(i), y = (*(before.*field))(i);
      const bool same = std::memcmp(&x, &y, sizeof(T)) == 0;
      wrong_statistics += sees(i) && in_scores ? std::isfinite(x) : !same;
    }
  }
  CHECK(wrong_rows == 0);
  CHECK(wrong_statistics == 0);
}

/// Tests NaN and both infinities, in one row of query, key or value, under `options`.
template <class T>
void check_reach_of_all(const inputs<T>& in, const attention_options& options, std::size_t key,
                        const std::function<bool(std::size_t, std::size_t)>& visible) {
  const auto before =
      attention_statistics(in.query, in.key, in.value, options, attnscale::all_statistics);
  for (const T bad : {not_a_number<T>, infinite<T>, T(-infinite<T>)}) {
    CAPTURE(bad);
    CAPTURE(key);
    const auto sees = [&](std::size_t i) { return visible(i, key); };
    check_reach<T>(
        in, options, before, [&](auto& x) { xt::view(x.key, key).fill(bad); }, sees, true);
    check_reach<T>(
        in, options, before, [&](auto& x) { x.key(key, 1) = bad; }, sees, true);
    check_reach<T>(
        in, options, before, [&](auto& x) { xt::view(x.value, key).fill(bad); }, sees, false);
    const std::size_t row = in.query.shape(0) / 2;
    check_reach<T>(
        in, options, before, [&](auto& x) { x.query(row, 0) = bad; },
        [&](std::size_t i) {
          bool any = false;
          for (std::size_t j = 0; j < in.key.shape(0); ++j) any |= visible(i, j);
          return i == row && any;
        },
        true);
  }
}

}  // namespace

TEST_CASE("the bound 64 eps sum p|v| holds for any number of keys") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const std::size_t n : {std::size_t{50000}, std::size_t{100000}}) {
      CAPTURE(n);
      std::vector<double> zeros(n, 0.0), rising(n), noise(n), alternating(n), offset(n);
      const auto random = normal<double>({n}, 5);
      for (std::size_t j = 0; j < n; ++j) {
        rising[j] = 3.0 * static_cast<double>(j) / static_cast<double>(n);
        noise[j] = random(j);
        alternating[j] = j % 2 ? -1.0 : 1.0;
        offset[j] = 1000 + random(j);
      }
      std::vector<std::vector<double>> channels{alternating, offset};
      // Constants, because every addition to a long sum then rounds the same way.
      for (const double v : {1.0, 0.1, 1 / 3.0, 0.55, 0.7, 0.9})
        channels.push_back(std::vector<double>(n, v));
      // One head splits its keys, 16 do not; a few queries take another path than more.
      const std::vector<shape_type> rows{{1, 1, 1}, {16, 1, 1}, {16, 5, 1}};
      CHECK(output_error<T>(zeros, channels, rows) <= 64);
      if (n > 50000) continue;  // equal weights are the worst case
      CHECK(output_error<T>(rising, channels, rows) <= 64);
      CHECK(output_error<T>(noise, channels, rows) <= 64);
    }
  });
}

TEST_CASE("large finite scores: the largest key wins, and nothing overflows") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const double size : {1e2, 1e4, 1e30, 1e37}) {
      CAPTURE(size);
      // A window masks the first tile; without one, panels of queries and a few queries take two
      // paths.
      for (const auto& [n, n_queries, left] :
           {std::tuple<std::size_t, std::size_t, std::int64_t>{3, 3, 10},
            {500, 3, 10},
            {500, 3, attnscale::unbounded},
            {500, 40, attnscale::unbounded}}) {
        xt::xarray<T> key = xt::ones<T>({n, std::size_t{1}}) * T(-size);
        key(n / 2, 0) = T(size) + T(size) / 3;
        const xt::xarray<T> query = xt::ones<T>({n_queries, std::size_t{1}}),
                            value = normal<T>({n, 4}, 1);
        for (const bool causal : {false, true}) {
          const auto s = attention_statistics(
              query, key, value,
              {.scale = 1.0, .is_causal = causal, .window = {left, attnscale::unbounded}},
              attnscale::all_statistics);
          const std::size_t top = causal && n > 3 ? 0 : n / 2;
          CHECK((*s.argmax)(2) == static_cast<std::int64_t>(top));
          if (top == 0) continue;
          CHECK((*s.max_weight)(2) == doctest::Approx(1));
          CHECK((*s.entropy)(2) <= 1e-3);
          CHECK((*s.lse)(2) == doctest::Approx(size + size / 3));
          CHECK((*s.output)(2, 1) == doctest::Approx(value(top, 1)));
        }
      }
    }
  });
}

TEST_CASE("scores at the end of the range are right or NaN, never an empty row") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const double most = std::numeric_limits<T>::max();
    for (const double size : {0.6 * most, 0.9 * most})
      for (const bool masked : {false, true}) {
        CAPTURE(masked);
        const xt::xarray<T> query = xt::ones<T>({2, 1}), value = xt::ones<T>({20, 2});
        for (const double sign : {1.0, -1.0}) {
          CAPTURE(sign * size);
          xt::xarray<T> key = xt::zeros<T>({20, 1});
          key(7, 0) = static_cast<T>(sign * size);
          const auto s = attention_statistics(
              query, key, value, {.scale = 1.0, .key_lengths = 20, .softcap = std::nullopt},
              attnscale::all_statistics);
          const T out = (*s.output)(0, 0);
          CHECK((std::isnan(out) || std::abs(out - 1) < 1e-6));
          const T lse = (*s.lse)(0);
          CHECK((std::isnan(lse) || lse > 0));
        }
      }
  });
}

TEST_CASE("denormal queries, keys and values count") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const T tiny = std::numeric_limits<T>::denorm_min() * T(1000);
    const xt::xarray<T> q = xt::ones<T>({2, 3}) * tiny, k = xt::ones<T>({5, 3});
    const xt::xarray<T> v = xt::ones<T>({5, 2}) * tiny;
    const auto s = attention_statistics(q, k, v, {.scale = 1.0}, attnscale::all_statistics);
    CHECK((*s.output)(0, 0) == tiny);
    CHECK((*s.entropy)(0) == doctest::Approx(std::log(5.0)));
    CHECK((*s.max_score)(0) == doctest::Approx(3 * double(tiny)).epsilon(1e-2));
  });
}

TEST_CASE("weights are at most 1 and entropy lies in [0, ln n]") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const double sigma : {0.0, 1.0, 30.0, 1000.0})
      for (const std::size_t n : {1, 2, 100, 500}) {
        const inputs<T> in(70, n, 5, 1, sigma);
        const auto s =
            attention_statistics(in.query, in.key, {.scale = 1.0}, attnscale::all_statistics);
        CAPTURE(sigma);
        CAPTURE(n);
        CHECK(xt::amax(*s.max_weight)() <= 1);
        CHECK(xt::amax(*s.concentration)() <= 1);
        CHECK(xt::amin(*s.entropy)() >= 0);
        CHECK(xt::amax(*s.entropy)() <=
              std::log(double(n)) * (1 + bounds<T>::eps) + bounds<T>::sums);
        CHECK(xt::amin(*s.score_variance)() >= 0);
      }
  });
}

TEST_CASE("NaN and infinity reach the rows that see them, and no other row changes a bit") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const inputs<T> in(130, 400, 5, 7);
    using attnscale::causal_alignment;
    for (const std::size_t key : {0, 191, 192, 399}) {
      check_reach_of_all<T>(in, {}, key, [](auto, auto) { return true; });
      check_reach_of_all<T>(in, {.scale = -1.0, .softcap = 4}, key,
                            [](auto, auto) { return true; });
      check_reach_of_all<T>(in, {.is_causal = true}, key,
                            [](std::size_t i, std::size_t j) { return j <= i; });
      check_reach_of_all<T>(
          in, {.causal = causal_alignment::bottom_right, .window = {30, 0}}, key,
          [](std::size_t i, std::size_t j) { return j <= i + 270 && j + 30 >= i + 270; });
      check_reach_of_all<T>(in, {.key_lengths = 192}, key,
                            [](std::size_t, std::size_t j) { return j < 192; });
    }
  });
}

TEST_CASE("NaN and infinity under a boolean and an additive mask") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const std::size_t n_queries : {3, 67}) {
      // More channels than four vectors hold, and not a multiple of a vector.
      const inputs<T> in(n_queries, 200, 4, 70);
      const xt::xarray<bool> mask = normal<double>({n_queries, 200}, 4) < 0.0;
      const xt::xarray<T> bias = xt::where(mask, T(1), -infinite<T>);
      const auto visible = [&](std::size_t i, std::size_t j) { return mask(i, j); };
      for (const std::size_t key : {3, 195}) {
        check_reach_of_all<T>(in, {.attn_mask = mask}, key, visible);
        check_reach_of_all<T>(in, {.attn_mask = bias}, key, visible);
        check_reach_of_all<T>(in, {.attn_mask = bias, .softcap = 2}, key, visible);
      }
    }
  });
}

TEST_CASE("NaN and infinity with split keys") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const inputs<T> in(3, 20000, 4, 3);
    for (const std::size_t key : {5, 19990}) {
      check_reach_of_all<T>(in, {}, key, [](auto, auto) { return true; });
      check_reach_of_all<T>(in, {.window = {0, 15000}}, key,
                            [](std::size_t i, std::size_t j) { return j >= i && j <= i + 15000; });
    }
  });
}

TEST_CASE("an infinite value of positive weight is an infinite output") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const std::size_t n : {200, 7000})  // 7000: the compensated sum of many tiles
      for (const std::size_t n_queries : {2, 9})
        for (const std::size_t key : {0, 150}) {
          inputs<T> in(n_queries, n, 3, 5);
          in.value(key, 1) = -infinite<T>;
          CHECK(xt::all(xt::equal(xt::view(attention(in.query, in.key, in.value), xt::all(), 1),
                                  -infinite<T>)));
        }
  });
}

TEST_CASE("a NaN value shows even where its weight underflows, also between splits") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const std::size_t n : {std::size_t{400}, std::size_t{20000}})
      for (const std::size_t n_queries : {2, 7}) {
        CAPTURE(n);
        xt::xarray<T> key = xt::zeros<T>({n, std::size_t{1}}),
                      value = xt::ones<T>({n, std::size_t{2}});
        key(0, 0) = T(5000);
        value(n - 1, 1) = not_a_number<T>;
        const auto out = attention(xt::xarray<T>(xt::ones<T>({n_queries, std::size_t{1}})), key,
                                   value, {.scale = 1.0});
        CHECK(std::isnan(out(0, 1)));
        CHECK(out(0, 0) == T(1));
      }
  });
}

TEST_CASE("a row's result does not depend on the other rows of its block") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const inputs<T> in(64, 1000, 6, 5);
    const auto all = attention(in.query, in.key, in.value);
    inputs<T> other = in;
    for (std::size_t i = 0; i < 64; i += 2) xt::view(other.query, i) *= T(20);
    const auto changed = attention(other.query, in.key, in.value);
    std::size_t different = 0;
    for (std::size_t i = 1; i < 64; i += 2)
      different += !identical(xt::xarray<T>(xt::view(all, i)), xt::xarray<T>(xt::view(changed, i)));
    CHECK(different == 0);
  });
}

TEST_CASE("an additive mask of large numbers hides no key") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const T large = std::numeric_limits<T>::lowest() / T(2.5);
    for (const std::size_t n_queries : {2, 9}) {
      const inputs<T> in(n_queries, 50, 4, 3);
      xt::xarray<T> mask = xt::zeros<T>({n_queries, std::size_t{50}});
      xt::view(mask, 0, xt::range(10, 50)).fill(large);
      xt::view(mask, 1).fill(large);
      const auto s = attention_statistics(in.query, in.key, in.value, {.attn_mask = mask},
                                          attnscale::all_statistics);
      CHECK((*s.n_visible)(0) == 50);
      CHECK((*s.max_weight)(0) > 0);
      // score + large = large: the weights of such a row are equal, as in PyTorch.
      CHECK((*s.entropy)(1) == doctest::Approx(std::log(50.0)));
      const double mean = xt::mean(xt::view(in.value, xt::all(), 0))();
      CHECK((*s.output)(1, 0) == doctest::Approx(mean));
      // Beyond float, but far from the lowest double.
      const xt::xarray<double> wide =
          xt::ones<double>({1, 50}) * (std::numeric_limits<double>::lowest() / 4);
      CHECK(attnscale::attention_entropy(in.query, in.key, {.attn_mask = wide})(0) ==
            doctest::Approx(std::log(50.0)));
    }
  });
}

}  // namespace test_numerics
