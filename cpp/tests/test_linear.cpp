// SPDX-License-Identifier: BSD-3-Clause
//
// Linear attention of one head against its definition: sums of all pairs, in double.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "compare.hpp"
#include "linear.hpp"

using attnscale::detail::linear_block;
using namespace testing;

namespace {

/// One call on arrays of its own, which starts from the sums over `before` keys.
template <class T>
struct linear_case {
  std::size_t rows, features, value_dim, before;
  xt::xarray<T> query, key, value, out, sums;
  xt::xarray<double> products, total;
  xt::xarray<T> old_key, old_value;

  linear_case(std::size_t n, std::size_t f, std::size_t d, std::size_t earlier)
      : rows(n),
        features(f),
        value_dim(d),
        before(earlier),
        query(normal<T>({n, f}, 1)),
        key(normal<T>({n, f}, 2)),
        value(normal<T>({n, d}, 3)),
        out(xt::zeros<T>({n, d})),
        sums(xt::zeros<T>({n})),
        products(xt::zeros<double>({f, d})),
        total(xt::zeros<double>({f})),
        old_key(normal<T>({earlier, f}, 4)),
        old_value(normal<T>({earlier, d}, 5)) {}

  linear_block block() {
    linear_block b{};
    b.products = products.data();
    b.total = total.data();
    b.rows = static_cast<std::int64_t>(rows);
    b.features = static_cast<std::int64_t>(features);
    b.value_dim = static_cast<std::int64_t>(value_dim);
    return b;
  }

  void give_keys(linear_block& b, const xt::xarray<T>& k, const xt::xarray<T>& v) const {
    b.key = k.data();
    b.value = v.data();
    b.key_stride = static_cast<std::ptrdiff_t>(features);
    b.value_stride = static_cast<std::ptrdiff_t>(value_dim);
    b.rows = static_cast<std::int64_t>(k.shape(0));
  }

  void run(bool with_queries, bool with_keys) {
    linear_block earlier = block(), now = block();
    give_keys(earlier, old_key, old_value);
    attnscale::detail::run(earlier, sizeof(T) == 8);
    if (with_keys) give_keys(now, key, value);
    if (with_queries) {
      now.query = query.data();
      now.query_stride = static_cast<std::ptrdiff_t>(features);
      now.out = out.data();
      now.out_stride = static_cast<std::ptrdiff_t>(value_dim);
      now.sums = sums.data();
    }
    attnscale::detail::run(now, sizeof(T) == 8);
  }

  /// What query i has to read of the value column c (of ones for c = value_dim), and the sum of the
  /// magnitudes that went into it.
  void expected(std::size_t i, std::size_t c, bool with_keys, double& sum, double& size) const {
    sum = size = 0;
    const auto add = [&](const xt::xarray<T>& k, const xt::xarray<T>& v, std::size_t count) {
      for (std::size_t j = 0; j < count; ++j)
        for (std::size_t f = 0; f < features; ++f) {
          const double x =
              double(query(i, f)) * double(k(j, f)) * (c < value_dim ? double(v(j, c)) : 1.0);
          sum += x, size += std::abs(x);
        }
    };
    add(old_key, old_value, before);
    if (with_keys) add(key, value, i + 1);
  }

  void check_output(bool with_keys) const {
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t c = 0; c <= value_dim; ++c) {
        double wanted, size;
        expected(i, c, with_keys, wanted, size);
        const double seen = c < value_dim ? out(i, c) : sums(i);
        CHECK(std::abs(seen - wanted) <= 8 * bounds<T>::eps * size);
      }
  }
};

}  // namespace

TEST_CASE("linear: queries read the keys up to their own, for sizes around lanes and blocks") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const std::size_t rows : {1, 2, 63, 64, 65, 130})
      for (const std::size_t width : {1, 5, 16, 33}) {
        CAPTURE(rows);
        CAPTURE(width);
        linear_case<T> one(rows, width, 34 - width, 20);
        one.run(true, true);
        one.check_output(true);
      }
  });
}

TEST_CASE("linear: queries alone read the sums, and keys alone add to them") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const std::size_t rows : {1, 64, 97}) {
      CAPTURE(rows);
      linear_case<T> reading(rows, 17, 9, 30), adding(rows, 17, 9, 30), both(rows, 17, 9, 30);
      reading.run(true, false);
      reading.check_output(false);
      adding.run(false, true);
      both.run(true, true);
      CHECK(xt::amax(xt::abs(adding.products - both.products))() <= 64 * bounds<T>::eps * rows);
      CHECK(xt::amax(xt::abs(adding.total - both.total))() <= 64 * bounds<T>::eps * rows);
    }
  });
}
