// SPDX-License-Identifier: BSD-3-Clause
//
// Output and statistics against the oracle: sizes around lanes and tiles, strides, leading axes,
// scales and split keys.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <stdexcept>

#include "attnscale/attention.hpp"
#include "compare.hpp"

namespace test_attention {

using attnscale::attention;
using attnscale::attention_options;
using namespace testing;

namespace {

/// Sizes around the lanes of a vector (4 ... 16), a block (32, 64) and a tile of keys (192).
constexpr std::array<std::size_t, 18> edges{1,  2,   3,   5,   15,  16,  17,  63,  64,
                                            65, 127, 128, 129, 191, 192, 193, 383, 385};

template <class T>
void check_size(std::size_t n_queries, std::size_t n_keys, std::size_t head_dim,
                std::size_t value_dim) {
  const inputs<T> in(n_queries, n_keys, head_dim, value_dim);
  check_call(in, {}, in.setting());
}

}  // namespace

TEST_CASE("numbers of keys around lanes and tiles") {
  for (const std::size_t n_keys : edges) {
    // A few queries take another path than a block of them; 20 are two vectors or more.
    for (const std::size_t n_queries : {2, 9, 20}) {
      check_size<float>(n_queries, n_keys, 24, 17);
      check_size<double>(n_queries, n_keys, 24, 17);
    }
  }
}

TEST_CASE("numbers of queries around lanes and blocks") {
  for (const std::size_t n_queries : edges) {
    check_size<float>(n_queries, 70, 16, 20);
    check_size<double>(n_queries, 70, 16, 20);
  }
}

TEST_CASE("head and value dimensions around lanes and register blocks") {
  for (const std::size_t head_dim : {0, 1, 2, 3, 5, 7, 8, 16, 31, 33, 64, 80, 100, 128}) {
    for_both_types([&](auto zero) {
      for (const std::size_t n_queries : {3, 37}) {
        check_size<decltype(zero)>(n_queries, 199, head_dim, 9);
        check_size<decltype(zero)>(n_queries, 199, 9, head_dim);
      }
    });
  }
}

TEST_CASE("empty extents give empty or zero results") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const auto& [n_queries, n_keys, head_dim, value_dim] :
         {std::array<std::size_t, 4>{0, 5, 4, 3}, {3, 0, 4, 3}, {0, 0, 0, 0}, {3, 5, 0, 0}})
      check_size<T>(n_queries, n_keys, head_dim, value_dim);
    const xt::xarray<T> none = xt::zeros<T>({2, 0, 4, 8}), rows = xt::zeros<T>({0, 3, 4, 8});
    CHECK(attention(none, none, none).shape() == none.shape());
    CHECK(attention(rows, rows, rows).shape() == rows.shape());
  });
}

TEST_CASE("scales: negative, zero, one a head, one a row") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const inputs<T> in(67, 203, 12, 5);
    oracle::setting s = in.setting();
    for (const double scale : {-0.7, 0.0, 0.02, 1.5}) {
      s.scale.fill(scale);
      check_call(in, {.scale = scale}, s);
    }
    s.scale = xt::linspace<double>(-1, 1, 67);
    check_call(in, {.scale = s.scale}, s);

    // The last rows of 67 are too few for lanes; those of 83 fill some lanes of the last vector.
    const inputs<T> more(83, 50, 12, 5);
    s = more.setting();
    s.scale = xt::linspace<double>(-1, 1, 83);
    check_call(more, {.scale = s.scale}, s);
  });
}

TEST_CASE("one scale a head is the single heads") {
  const auto q = normal<float>({3, 40, 8}, 1), k = normal<float>({3, 50, 8}, 2),
             v = normal<float>({3, 50, 6}, 3);
  const xt::xtensor<double, 2> scale = {{0.1}, {-0.5}, {1.0}};
  const auto all = attention(q, k, v, {.scale = scale});
  for (std::size_t h = 0; h < 3; ++h) {
    const auto one =
        attention(xt::view(q, h), xt::view(k, h), xt::view(v, h), {.scale = scale(h, 0)});
    CHECK(identical(xt::xarray<float>(xt::view(all, h)), one));
  }
}

TEST_CASE("soft-cap, alone and with a scale of either sign") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const inputs<T> in(35, 199, 16, 7, 3);
    oracle::setting s = in.setting();
    for (const double cap : {0.5, 5.0, 50.0, 1e6}) {
      s.softcap = cap;
      for (const double scale : {0.25, -2.0}) {
        s.scale.fill(scale);
        check_call(in, {.scale = scale, .softcap = cap}, s);
      }
    }
  });
}

TEST_CASE("any strides are read in place and give the same bits") {
  const auto q = normal<float>({2, 3, 21, 10}, 1), k = normal<float>({2, 3, 40, 10}, 2),
             v = normal<float>({2, 3, 40, 6}, 3);
  const auto wanted = attention(q, k, v);

  const xt::xarray<float> q_bshd = xt::transpose(q, {0, 2, 1, 3});
  CHECK(identical(wanted, attention(xt::transpose(q_bshd, {0, 2, 1, 3}), k, v)));
  const xt::xarray<float, xt::layout_type::column_major> k_fortran = k, v_fortran = v;
  CHECK(identical(wanted, attention(q, k_fortran, v_fortran)));
  const xt::xtensor<float, 4> fixed = k;
  CHECK(identical(wanted, attention(q, fixed, v)));

  xt::xarray<float> wide = xt::zeros<float>({2, 3, 80, 25});
  const auto every_other =
      xt::view(wide, xt::all(), xt::all(), xt::range(0, 80, 2), xt::range(3, 23, 2));
  xt::view(wide, xt::all(), xt::all(), xt::range(0, 80, 2), xt::range(3, 23, 2)) = k;
  CHECK(identical(wanted, attention(q, every_other, v)));

  using namespace xt::placeholders;
  const xt::xarray<float> backwards = xt::view(v, xt::all(), xt::all(), xt::range(_, _, -1));
  CHECK(identical(wanted,
                  attention(q, k, xt::view(backwards, xt::all(), xt::all(), xt::range(_, _, -1)))));
  const auto adapted = xt::adapt(k.data(), k.size(), xt::no_ownership(), shape_type{2, 3, 40, 10});
  CHECK(identical(wanted, attention(q, adapted, v)));
}

TEST_CASE("leading axes broadcast, also with stride 0") {
  const auto q = normal<double>({4, 1, 9, 6}, 1), k = normal<double>({3, 11, 6}, 2),
             v = normal<double>({1, 3, 11, 5}, 3);
  const auto seen = attention(q, k, v);
  REQUIRE(seen.shape() == shape_type{4, 3, 9, 5});
  for (std::size_t b = 0; b < 4; ++b)
    for (std::size_t h = 0; h < 3; ++h)
      CHECK(identical(xt::xarray<double>(xt::view(seen, b, h)),
                      attention(xt::view(q, b, 0), xt::view(k, h), xt::view(v, 0, h))));
  const xt::xarray<double> row = normal<double>({6}, 4);
  // adapt requires a size of 9 * 6; the strides stay within the 6 numbers in memory.
  const auto repeated = xt::adapt(row.data(), 54, xt::no_ownership(), shape_type{9, 6},
                                  std::vector<std::ptrdiff_t>{0, 1});
  const auto same_rows = attention(repeated, xt::view(k, 0), xt::view(v, 0, 0));
  for (std::size_t i = 1; i < 9; ++i)
    CHECK(xt::xarray<double>(xt::view(same_rows, i)) == xt::xarray<double>(xt::view(same_rows, 0)));
}

TEST_CASE("enable_gqa: groups of query heads share a key head") {
  const auto q = normal<float>({2, 6, 9, 8}, 1), k = normal<float>({2, 3, 20, 8}, 2),
             v = normal<float>({2, 2, 20, 4}, 3);
  const auto seen = attention(q, k, v, {.enable_gqa = true});
  REQUIRE(seen.shape() == shape_type{2, 6, 9, 4});
  for (std::size_t b = 0; b < 2; ++b)
    for (std::size_t h = 0; h < 6; ++h)
      CHECK(identical(xt::xarray<float>(xt::view(seen, b, h)),
                      attention(xt::view(q, b, h), xt::view(k, b, h / 2), xt::view(v, b, h / 3))));
}

TEST_CASE("mixed float types: the result is double, the inputs stay as they are") {
  const inputs<double> in(20, 33, 8, 5);
  const xt::xarray<float> q = in.query, v = in.value;
  const auto seen = attention(q, in.key, v);
  CHECK(identical(seen, attention(xt::xarray<double>(q), in.key, xt::xarray<double>(v))));
}

TEST_CASE("few queries and many keys: the keys are split") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const std::size_t n_queries : {1, 3, 9, 65}) {
      const inputs<T> in(n_queries, 16411, 8, 3);
      oracle::setting s = in.setting();
      check_call(in, {}, s);
      if (n_queries > 9) continue;  // the oracle takes most of the time
      s.scale.fill(-0.9);
      check_call(in, {.scale = -0.9}, s);
    }
  });
}

TEST_CASE("more keys than tiles of a carry, without a split of the keys") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const std::size_t n_keys : {2049, 6144, 6145, 6337, 7000}) {
      check_size<T>(3, n_keys, 5, 4);
      check_size<T>(9, n_keys, 5, 4);
    }
  });
}

TEST_CASE("results do not depend on the number of threads, to the last bit") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const auto& [n_queries, n_keys] : {std::array<std::size_t, 2>{300, 400}, {2, 40000}}) {
      const inputs<T> in(n_queries, n_keys, 16, 8);
      const auto run = [&](int threads) {
        return attention_statistics(
            in.query, in.key, in.value,
            {.window = {20000, attnscale::unbounded}, .num_threads = threads},
            attnscale::all_statistics);
      };
      const auto one = run(1);
      for (const int threads : {2, 3, 8}) {
        const auto many = run(threads);
        CHECK(identical(*one.output, *many.output));
        CHECK(identical(*one.lse, *many.lse));
        CHECK(identical(*one.entropy, *many.entropy));
        CHECK(identical(*one.score_variance, *many.score_variance));
        CHECK(identical(*one.argmax, *many.argmax));
      }
    }
  });
}

TEST_CASE("an interrupted call throws before it is finished, and the next call works") {
  // So long that no machine finishes before the second poll.
  const inputs<float> in(100000, 100000, 16, 16);
  const inputs<float> next(400, 600, 16, 16);
  const auto wanted = attention(next.query, next.key, next.value);
  for (const int threads : {1, 2, 4}) {
    int asked = 0;
    const attention_options options{.num_threads = threads,
                                    .interrupted = [&] { return ++asked == 2; }};
    CHECK_THROWS_AS(attention(in.query, in.key, in.value, options), attnscale::interrupted);
    CHECK(asked == 2);
    CHECK(identical(wanted, attention(next.query, next.key, next.value)));
  }
}

TEST_CASE("what options.interrupted throws reaches the caller, and the next call works") {
  const inputs<float> in(100000, 100000, 16, 16);
  const inputs<float> next(400, 600, 16, 16);
  const auto wanted = attention(next.query, next.key, next.value);
  for (const int threads : {1, 3}) {
    const attention_options options{.num_threads = threads, .interrupted = []() -> bool {
                                      throw std::domain_error("no answer");
                                    }};
    CHECK_THROWS_WITH_AS(attention(in.query, in.key, in.value, options), "no answer",
                         std::domain_error);
    CHECK(identical(wanted, attention(next.query, next.key, next.value)));
  }
}

}  // namespace test_attention
