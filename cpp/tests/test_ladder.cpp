// SPDX-License-Identifier: BSD-3-Clause
//
// run(ladder_problem) and run(received_ladder_problem) against the oracle at every scale.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attnscale/problem.hpp"
#include "compare.hpp"

namespace test_ladder {

using attnscale::element_type;
using attnscale::ladder_problem;
using attnscale::received_ladder_problem;
using namespace testing;

namespace {

template <class T>
constexpr element_type type_of = sizeof(T) == 4 ? element_type::float32 : element_type::float64;

/// Visible keys of a call: an interval for each query, and a mask.
struct visible_keys {
  std::vector<std::int64_t> begin{}, end{};
  xt::xarray<bool> mask{};
};

template <class T, class Problem>
void point_at(Problem& p, const xt::xarray<T>& query, const xt::xarray<T>& key,
              const std::vector<double>& bases, std::int64_t n_scales, const visible_keys& seen) {
  const auto head_dim = static_cast<std::int64_t>(query.shape(1));
  p.compute = type_of<T>;
  p.n_queries = static_cast<std::int64_t>(query.shape(0));
  p.n_keys = static_cast<std::int64_t>(key.shape(0));
  p.head_dim = head_dim;
  p.query = p.key = {type_of<T>, static_cast<std::ptrdiff_t>(head_dim), 1};
  p.n_bases = static_cast<std::int64_t>(bases.size());
  p.n_scales = n_scales;
  attnscale::attention_head head{.query = query.data(), .key = key.data(), .scale = bases.data()};
  if (!seen.begin.empty()) head.begin = seen.begin.data(), p.begin_row = 1;
  if (!seen.end.empty()) head.end = seen.end.data(), p.end_row = 1;
  if (seen.mask.dimension() == 2) {
    p.mask_type = attnscale::mask_kind::boolean;
    p.attn_mask.row = p.n_keys;
    p.attn_mask.column = 1;
    head.attn_mask = seen.mask.data();
  }
  p.heads = {head};
}

/// Results of one head.
template <class T>
struct ladder_rows {
  std::vector<T> entropy, lse, max_weight, first_weight, top;
  std::vector<double> received;

  ladder_rows(const xt::xarray<T>& query, const xt::xarray<T>& key,
              const std::vector<double>& bases, std::size_t n_scales, const visible_keys& rows = {},
              const visible_keys& keys = {}) {
    const std::size_t n = query.shape(0) * n_scales;
    for (std::vector<T>* each : {&entropy, &lse, &max_weight, &first_weight}) each->resize(n);
    top.resize(query.shape(0));
    received.resize(key.shape(0) * n_scales);
    ladder_problem p;
    point_at(p, query, key, bases, static_cast<std::int64_t>(n_scales), rows);
    p.entropy = entropy.data();
    p.lse = lse.data();
    p.max_weight = max_weight.data();
    p.first_weight = first_weight.data();
    p.top = top.data();
    run(p);
    received_ladder_problem exchanged;
    point_at(exchanged, key, query, bases, static_cast<std::int64_t>(n_scales), keys);
    exchanged.top = top.data();
    exchanged.max_weight = max_weight.data();
    exchanged.received = received.data();
    run(exchanged);
  }
};

template <class X>
oracle::column at_scale(const std::vector<X>& all, std::size_t s, std::size_t n_scales) {
  oracle::column found = xt::zeros<double>({all.size() / n_scales});
  for (std::size_t r = 0; r < found.size(); ++r)
    found(r) = static_cast<double>(all[r * n_scales + s]);
  return found;
}

template <class T>
void check_ladder(const inputs<T>& in, oracle::setting setting, const visible_keys& rows = {},
                  const visible_keys& keys = {}) {
  const std::vector<double> bases{0.05, 0.07};
  constexpr std::size_t n_scales = 9;
  const ladder_rows<T> seen(in.query, in.key, bases, n_scales, rows, keys);
  for (std::size_t s = 0; s < n_scales; ++s) {
    CAPTURE(s);
    CAPTURE(in.query.shape(0));
    CAPTURE(in.key.shape(0));
    setting.scale.fill(std::ldexp(bases[s % 2], static_cast<int>(s / 2)));
    const auto e = oracle::attention(in.query, in.key, in.value, setting);
    const bounds<T> b(e);
    const oracle::column share = bounds<T>::sums + 4 * b.score * e.max_weight;
    CHECK(worst_ratio(at_scale(seen.entropy, s, n_scales), e.entropy, b.entropy(e)) <= 1);
    CHECK(worst_ratio(at_scale(seen.lse, s, n_scales), e.lse, b.lse(e)) <= 1);
    CHECK(worst_ratio(at_scale(seen.max_weight, s, n_scales), e.max_weight, share) <= 1);
    if (in.key.shape(0) == 0) continue;
    const oracle::column first = xt::view(e.weights, xt::all(), 0);
    CHECK(worst_ratio(at_scale(seen.first_weight, s, n_scales), first, share) <= 1);
    const oracle::column received = xt::sum(e.weights, {0});
    const double rows_error = xt::sum(share)();
    const oracle::column allowed = bounds<T>::sums + xt::zeros_like(received) + rows_error;
    CHECK(worst_ratio(at_scale(seen.received, s, n_scales), received, allowed) <= 1);
  }
}

}  // namespace

TEST_CASE("ladder: sizes around lanes and tiles") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const std::size_t n : {1, 2, 15, 17, 63, 65, 191, 193, 241}) {
      const inputs<T> rows(n, 70, 8, 1), keys(9, n, 8, 1);
      check_ladder(rows, rows.setting());
      check_ladder(keys, keys.setting());
    }
  });
}

TEST_CASE("ladder: causal rows and masks") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const std::size_t n = 210;
    const inputs<T> in(n, n, 8, 1);
    oracle::setting s = in.setting();
    visible_keys rows, keys;
    for (std::size_t i = 0; i < n; ++i) {
      rows.end.push_back(static_cast<std::int64_t>(i + 1));
      keys.begin.push_back(static_cast<std::int64_t>(i));
      for (std::size_t j = i + 1; j < n; ++j) s.visible(i, j) = false;
    }
    check_ladder(in, s, rows, keys);
    const xt::xarray<bool> mask = normal<double>({n, n}, 5) < 0.3;
    s = in.setting();
    s.visible = mask;
    check_ladder(in, s, {.mask = mask}, {.mask = xt::transpose(mask)});
  });
}

TEST_CASE("ladder: sharp rows keep their largest weight, and hidden rows have none") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const inputs<T> in(40, 300, 8, 1, 40);
    const ladder_rows<T> sharp(in.query, in.key, {1.0}, 5);
    for (std::size_t i = 0; i < sharp.entropy.size(); ++i) {
      CHECK(sharp.max_weight[i] <= T(1));
      CHECK(sharp.entropy[i] >= T(0));
      CHECK(std::isfinite(sharp.lse[i]));
    }
    const ladder_rows<T> hidden(in.query, in.key, {1.0}, 2,
                                {.end = std::vector<std::int64_t>(40, 0)},
                                {.end = std::vector<std::int64_t>(300, 0)});
    CHECK(hidden.entropy == std::vector<T>(80, 0));
    CHECK(hidden.lse == std::vector<T>(80, -std::numeric_limits<T>::infinity()));
    CHECK(hidden.received == std::vector<double>(600, 0));
  });
}

TEST_CASE("ladder: a product that is not finite makes its row NaN") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const T bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()}) {
      inputs<T> in(20, 30, 4, 1);
      xt::view(in.query, 7).fill(bad);
      const ladder_rows<T> seen(in.query, in.key, {0.1}, 2);
      for (std::size_t i = 0; i < seen.entropy.size(); ++i)
        CHECK(std::isnan(seen.entropy[i]) == (i / 2 == 7));
    }
  });
}

TEST_CASE("ladder: what it does not compute is refused") {
  const xt::xarray<float> x = xt::ones<float>({3, 4});
  const std::vector<double> bases{1.0};
  const auto refused = [&](std::int64_t n_scales, double softcap) {
    ladder_problem p;
    point_at(p, x, x, bases, n_scales, {});
    p.form.softcap = softcap;
    return refusal([&] { run(p); });
  };
  CHECK(refused(1, 0) == "no error");
  CHECK(refused(6, 0) == "a ladder must have from one to five scales for each base");
  CHECK(refused(1, 2) ==
        "a ladder takes scaled products, without soft-cap, tables and leading keys");
}

}  // namespace test_ladder
