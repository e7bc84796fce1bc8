// SPDX-License-Identifier: BSD-3-Clause
//
// Linformer, local and global, and differential attention, and the products that they need, against
// plain loops in double; gradients against central differences; refusals.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "attnscale/detail/matrix_product.hpp"
#include "attnscale/differential_attention.hpp"
#include "attnscale/hybrid.hpp"
#include "attnscale/linformer_attention.hpp"
#include "attnscale/local_global_attention.hpp"
#include "central_differences.hpp"
#include "compare.hpp"
#include "linear_loops.hpp"

namespace test_composed_attention {

using namespace attnscale;
using namespace testing;
using loops::difference;
using loops::matrix;

namespace {

using array = xt::xarray<double>;

template <class T>
constexpr double near = std::is_same_v<T, float> ? 2e-5 : 1e-12;

/// Product a b of one head.
matrix times(const matrix& a, const matrix& b) {
  matrix found = xt::zeros<double>({a.shape(0), b.shape(1)});
  for (std::size_t i = 0; i < a.shape(0); ++i)
    for (std::size_t j = 0; j < b.shape(1); ++j)
      for (std::size_t k = 0; k < a.shape(1); ++k) found(i, j) += a(i, k) * b(k, j);
  return found;
}

/// Softmax attention of one head to the keys with sees(i, j).
template <class Sees>
matrix softmax(const matrix& query, const matrix& key, const matrix& value, double scale,
               Sees sees) {
  return loops::weighted(
      query.shape(0), value, loops::everything, true,
      [&](std::size_t i, std::size_t j, std::size_t) {
        const auto same = [](double x) { return x; };
        return sees(i, j) ? std::exp(scale * loops::product(query, key, i, j, same)) : 0.0;
      });
}

bool sees_all(std::size_t, std::size_t) { return true; }

template <class T, class A, class B>
dense_array<T> product(const A& a, const B& b, int num_threads = 1) {
  const strided_array left(a, 2), right(b, 2);
  return detail::matrix_product<T>(left, right, broadcast_leading({"a", &left}, {"b", &right}),
                                   {.num_threads = num_threads});
}

xt::xarray<float> zeros(const shape_type& shape) { return xt::zeros<float>(shape); }

}  // namespace

TEST_CASE("a product of matrices is the sums of its terms, from any strides") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    using sizes = std::vector<std::size_t>;
    for (const sizes& n : std::vector<sizes>{{1, 1, 1}, {65, 300, 17}, {3, 257, 259}, {2, 0, 3}}) {
      CAPTURE(n[1]);
      const auto a = normal<T>({n[0], n[1]}, 1), b = normal<T>({n[1], n[2]}, 2);
      const matrix wanted = times(a, b);
      CHECK(difference(product<T>(a, b), wanted) < 2 * near<T>);
      const xt::xarray<T> a_turned = xt::transpose(a), b_turned = xt::transpose(b);
      CHECK(identical(product<T>(xt::transpose(a_turned), xt::transpose(b_turned)),
                      product<T>(a, b)));
      const strided_array turned(b_turned, 2);
      CHECK(
          identical(detail::matrix_product<T>({a, 2}, turned.transposed(), {}), product<T>(a, b)));
      const xt::xarray<double> wide = a;
      CHECK(identical(product<T>(wide, b), product<T>(a, b)));
    }
    const auto a = normal<T>({8, 12}, 3), b = normal<T>({12, 9}, 4);
    const auto half = xt::view(a, xt::range(1, 8, 3), xt::range(0, 12, 2));
    const auto other = xt::view(b, xt::range(0, 6), xt::range(2, 9, 2));
    CHECK(difference(product<T>(half, other), times(half, other)) < near<T>);
  });
}

TEST_CASE("products broadcast over heads, and neither threads nor neighbours change a bit") {
  const auto a = normal<float>({2, 130, 300}, 1);
  auto b = normal<float>({3, 1, 300, 270}, 2);
  const auto whole = product<float>(a, b);
  CHECK(whole.shape() == dense_array<float>::shape_type{3, 2, 130, 270});
  CHECK(difference(xt::view(whole, 2, 1), times(xt::view(a, 1), xt::view(b, 2, 0))) < 4e-5);
  CHECK(identical(whole, product<float>(a, b, 3)));
  b(1, 0, 7, 5) = NAN;
  const auto broken = product<float>(a, b);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const bool reached = i / (2 * 130 * 270) == 1 && i % 270 == 5;
    if (std::isnan(broken.flat(i)) != reached) FAIL_CHECK("NaN is in the wrong place");
  }
  CHECK(refusal([&] {
          product<float>(zeros({2, 3, 4}), zeros({3, 4, 5}));
        }) == "the leading axes of a and b must broadcast, got (2,) and (3,)");
}

TEST_CASE("Linformer attends to projected rows") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const auto q = normal<T>({4, 7, 5}, 1), k = normal<T>({2, 300, 5}, 2),
               v = normal<T>({2, 300, 3}, 3), e = normal<T>({11, 300}, 4, 0.05),
               f = normal<T>({2, 11, 300}, 5, 0.05);
    const auto seen = linformer_attention(q, k, v, e, f, {.scale = 0.7, .enable_gqa = true});
    const auto shared = linformer_attention(q, k, v, f, {.enable_gqa = true});
    static_assert(std::is_same_v<decltype(seen), const dense_array<T>>);
    for (std::size_t h = 0; h < 4; ++h) {
      const matrix key = xt::view(k, h / 2), value = xt::view(v, h / 2), own = xt::view(f, h / 2);
      const matrix query = xt::view(q, h);
      CHECK(difference(xt::view(seen, h),
                       softmax(query, times(e, key), times(own, value), 0.7, sees_all)) < near<T>);
      CHECK(difference(xt::view(shared, h), softmax(query, times(own, key), times(own, value),
                                                    1 / std::sqrt(5.0), sees_all)) < near<T>);
    }
    const auto wide = xt::xarray<double>(e);  // a projection does not change the type
    CHECK(
        identical(linformer_attention(q, k, v, wide, f, {.scale = 0.7, .enable_gqa = true}), seen));
  });
  const auto q = normal<float>({4, 5}, 1), k = normal<float>({9, 5}, 2),
             e = normal<float>({6, 9}, 3);
  CHECK(identical(linformer_attention(q, k, k, e, {.scale = laws::log_n{.base = 2}}),
                  linformer_attention(q, k, k, e, {.scale = std::log2(6.0) / std::sqrt(5.0)})));
}

TEST_CASE("local and global attention is a mask") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const std::size_t n : {1, 6, 40, 150})
      for (const std::int64_t radius : {0, 3, 200})
        for (const std::size_t first : {std::size_t{0}, std::size_t{1}, n})
          for (const bool causal : {false, true}) {
            CAPTURE(n);
            CAPTURE(radius);
            CAPTURE(first);
            const auto q = normal<T>({n, 5}, 1, 4), k = normal<T>({n, 5}, 2),
                       v = normal<T>({n, 3}, 3);
            const auto sees = [&](std::size_t i, std::size_t j) {
              const bool local = std::max(i, j) - std::min(i, j) <= std::size_t(radius);
              return (local || i < first || j < first) && (!causal || j <= i);
            };
            const auto seen = local_global_attention(
                q, k, v,
                {.radius = radius, .global_tokens = std::int64_t(first), .is_causal = causal});
            CHECK(difference(seen, softmax(q, k, v, 1 / std::sqrt(5.0), sees)) < 3 * near<T>);
          }
  });
}

TEST_CASE("local and global attention in groups of heads, blocks of rows and views") {
  const std::size_t n = 70, dim = 2200;  // more than one block of rows
  const auto q = normal<double>({2, 2, n, 4}, 1), k = normal<double>({1, n, 4}, 2),
             wide = normal<double>({n, 2 * dim}, 3);
  const auto v = xt::view(wide, xt::all(), xt::range(0, 2 * dim, 2));
  const auto sees = [](std::size_t i, std::size_t j) {
    return std::max(i, j) - std::min(i, j) <= 2 || i < 3 || j < 3;
  };
  const local_global_attention_options options{
      .radius = 2, .global_tokens = 3, .scale = 0.4, .enable_gqa = true};
  const auto seen = local_global_attention(q, k, v, options);
  CHECK(seen.shape() == dense_array<double>::shape_type{2, 2, n, dim});
  CHECK(difference(xt::view(seen, 1, 0), softmax(xt::view(q, 1, 0), xt::view(k, 0), v, 0.4, sees)) <
        1e-12);
  local_global_attention_options more = options;
  more.num_threads = 3;
  CHECK(identical(local_global_attention(q, k, v, more), seen));
  more.causal = causal_alignment::bottom_right;
  CHECK(difference(xt::view(local_global_attention(q, k, v, more), 0, 1),
                   softmax(xt::view(q, 0, 1), xt::view(k, 0), v, 0.4,
                           [&](auto i, auto j) { return j <= i && sees(i, j); })) < 1e-12);
}

TEST_CASE("a broken key reaches the rows that see it") {
  auto k = normal<double>({50, 4}, 2);
  const auto q = normal<double>({50, 4}, 1), v = normal<double>({50, 3}, 3);
  k(20, 0) = NAN;
  const auto seen = local_global_attention(q, k, v, {.radius = 2, .global_tokens = 1});
  for (std::size_t i = 0; i < 50; ++i)
    CHECK(std::isnan(seen(i, 0)) == (i == 0 || (i >= 18 && i <= 22)));
}

TEST_CASE("differential attention is the difference of two maps") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const auto q1 = normal<T>({4, 9, 5}, 1), k1 = normal<T>({2, 9, 5}, 2),
               q2 = normal<T>({4, 9, 3}, 3), k2 = normal<T>({2, 9, 3}, 4),
               v = normal<T>({2, 9, 6}, 5);
    array lam = xt::zeros<double>({4, 1});
    for (std::size_t h = 0; h < 4; ++h) lam(h, 0) = 0.6 * double(h) - 0.5;
    const auto seen = differential_attention(q1, k1, q2, k2, v, lam,
                                             {.scale = 0.6, .is_causal = true, .enable_gqa = true});
    static_assert(std::is_same_v<decltype(seen), const dense_array<T>>);
    const auto causal = [](std::size_t i, std::size_t j) { return j <= i; };
    for (std::size_t h = 0; h < 4; ++h) {
      const std::size_t g = h / 2;
      const matrix first = softmax(xt::view(q1, h), xt::view(k1, g), xt::view(v, g), 0.6, causal);
      const matrix second = softmax(xt::view(q2, h), xt::view(k2, g), xt::view(v, g), 0.6, causal);
      CHECK(difference(xt::view(seen, h), matrix(first - lam(h, 0) * second)) < near<T>);
    }
  });
  const auto x = normal<float>({7, 4}, 1);
  const auto wide = normal<double>({7, 4}, 2);
  static_assert(
      std::is_same_v<decltype(differential_attention(x, x, wide, x, x, 0.5)), dense_array<double>>);
  const array ones = xt::ones<double>({7, 1});
  CHECK(difference(differential_attention(x, x, wide, x, ones, 0.8), array(0.2 * ones)) < 1e-12);
}

TEST_CASE("maps of other types than the result are those of the arrays as the result's type") {
  const auto x = normal<float>({6, 4}, 1), y = normal<float>({6, 4}, 2);
  const array wide_x = x, wide_y = y, wide_query = normal<double>({6, 4}, 3);
  const attention_options options{.is_causal = true};
  CHECK(
      identical(differential_attention(x, y, wide_query, x, y, 0.3, options),
                differential_attention(wide_x, wide_y, wide_query, wide_x, wide_y, 0.3, options)));
  const auto found = differential_attention_gradients(x, y, wide_query, x, y, 0.3, y, options);
  const auto wide = differential_attention_gradients(wide_x, wide_y, wide_query, wide_x, wide_y,
                                                     0.3, wide_y, options);
  static_assert(std::is_same_v<decltype(found.value), dense_array<float>>);
  CHECK(difference(found.key1, wide.key1) < 1e-6);
  CHECK(identical(found.query2, wide.query2));
}

TEST_CASE("gradients of differential attention are the differences of its output") {
  array q1 = normal<double>({4, 6, 3}, 1), k1 = normal<double>({2, 6, 3}, 2),
        q2 = normal<double>({4, 6, 2}, 3), k2 = normal<double>({2, 6, 2}, 4),
        v = normal<double>({1, 6, 2}, 5);
  const array grad = normal<double>({4, 6, 1}, 6);
  const attention_options options{.is_causal = true, .enable_gqa = true};
  for (const shape_type& shape : std::vector<shape_type>{{}, {4, 1}, {6}, {4, 6}}) {
    CAPTURE(shape.size());
    array lam = normal<double>(shape, 7);
    const auto loss = [&] {
      return xt::sum(grad * differential_attention(q1, k1, q2, k2, v, lam, options))();
    };
    const auto found = differential_attention_gradients(q1, k1, q2, k2, v, lam, grad, options);
    CHECK(found.lam.shape() == lam.shape());
    CHECK(difference(found.lam, differences(lam, loss)) < 1e-7);
    CHECK(difference(found.query1, differences(q1, loss)) < 1e-7);
    CHECK(difference(found.key1, differences(k1, loss)) < 1e-7);
    CHECK(difference(found.query2, differences(q2, loss)) < 1e-7);
    CHECK(difference(found.key2, differences(k2, loss)) < 1e-7);
    CHECK(difference(found.value, differences(v, loss)) < 1e-7);
  }
  const attention_options gates{.enable_gqa = true, .normalizer = normalizers::sigmoid(-1.0)};
  const auto of_gates = differential_attention_gradients(q1, k1, q2, k2, v, 0.4, grad, gates);
  CHECK(difference(of_gates.key2, differences(k2, [&] {
                     return xt::sum(grad * differential_attention(q1, k1, q2, k2, v, 0.4, gates))();
                   })) < 1e-7);
  CHECK(refusal([&] {
          differential_attention_gradients(q1, k1, q2, k2, v, 0.5, array(xt::ones<double>({5, 2})),
                                           options);
        }) == "grad_output must broadcast to the output = (4, 6, 2), got shape (5, 2)");
}

TEST_CASE("a hybrid is its heads") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const auto q = normal<T>({3, 5, 8, 4}, 1), k = normal<T>({5, 8, 4}, 2),
               v = normal<T>({3, 1, 8, 2}, 3);
    const matrix directions = performer_projection(6, 4);
    const std::vector<attention_kind> kinds{
        attention_options{.scale = 0.3}, efficient_attention_options{}, linear_attention_options{},
        cosformer_attention_options{.max_length = 9},
        performer_attention_options{.projection = directions, .scale = 0.5}};
    for (const bool causal : {false, true}) {
      const std::int64_t offset = causal ? 0 : loops::everything;
      const auto seen = hybrid(q, k, v, kinds, {.is_causal = causal});
      CHECK(seen.shape() == typename dense_array<T>::shape_type{3, 5, 8, 2});
      const auto check = [&](std::size_t head, auto wanted) {
        const matrix query = xt::view(q, 2, head), key = xt::view(k, head),
                     value = xt::view(v, 2, 0);
        CHECK(difference(xt::view(seen, 2, head), wanted(query, key, value)) < 2 * near<T>);
      };
      check(0, [&](auto&... x) {
        return softmax(x..., 0.3, [&](std::size_t i, std::size_t j) { return !causal || j <= i; });
      });
      check(1, [&](auto&... x) { return loops::efficient(x..., offset); });
      check(2, [&](auto&... x) { return loops::linear(x..., offset, loops::elu); });
      check(3, [&](auto&... x) { return loops::cosformer(x..., offset, 9); });
      check(4, [&](auto&... x) { return loops::performer(x..., offset, directions, 0.5); });
    }
    const auto two = xt::view(k, xt::range(0, 2));  // of four heads, in groups
    const auto shared =
        hybrid(xt::view(q, 0, xt::range(0, 4)), two, two,
               std::vector<attention_kind>(4, linear_attention_options{}), {.enable_gqa = true});
    for (const std::size_t head : {1, 2})
      CHECK(difference(xt::view(shared, head),
                       loops::linear(xt::view(q, 0, head), xt::view(k, head / 2),
                                     xt::view(k, head / 2), loops::everything, loops::elu)) <
            near<T>);
  });
  const auto x = zeros({2, 5, 4});
  const attention_options exact;
  CHECK(refusal([&] { hybrid(x, x, x, {exact}); }) ==
        "kinds must hold one kind for each of the 2 heads, got 1");
  CHECK(refusal([&] {
          hybrid(zeros({5, 4}), zeros({5, 4}), zeros({5, 4}), {exact});
        }) == "query must have an axis of heads, got shape (5, 4)");
  CHECK(refusal([&] {
          hybrid(x, zeros({1, 5, 3}), zeros({1, 5, 3}), {exact, exact});
        }) == "query and key must have the same last dimension (head_dim), got 4 and 3");
  CHECK(hybrid(zeros({2, 0, 4}), x, x, {exact, exact}).size() == 0);
}

TEST_CASE("a head of a hybrid says nothing that is of all heads") {
  const auto x = zeros({2, 5, 4});
  const attention_options exact;
  const linear_attention_options linear{.enable_gqa = true};
  const attnscale::performer_attention_options performer{.num_threads = 2};
  const auto refused = [&](const char* name, const attention_kind& kind) {
    CHECK(refusal([&] {
            hybrid(x, x, x, {exact, kind});
          }) == "kinds[1]." + std::string(name) +
                    " must be set in hybrid_options, which apply to all heads");
  };
  refused("is_causal", attention_options{.is_causal = true});
  refused("causal", attention_options{.causal = causal_alignment::top_left});
  refused("causal_offset", attention_options{.causal_offset = 3});
  refused("enable_gqa", linear);
  refused("num_threads", performer);
  refused("interrupted", attention_options{.interrupted = [] { return false; }});
  CHECK(refusal([&] {
          hybrid(x, x, x, {exact, exact}, {.causal_offset = 3});
        }) == "causal_offset goes with causal = offset, got 3 without it");
}

TEST_CASE("composed attentions refuse what does not fit") {
  const auto x = zeros({2, 5, 4});
  CHECK(refusal([&] {
          linformer_attention(x, x, x, zeros({3, 6}));
        }) ==
        "key_projection must have the shape (rows, n_keys) with n_keys = 5: it was made for one "
        "length; got (3, 6)");
  CHECK(refusal([&] {
          linformer_attention(x, x, x, zeros({3, 5}), zeros({5}));
        }) ==
        "value_projection must have the shape (rows, n_keys) with n_keys = 5: it was made for one "
        "length; got (5,)");
  CHECK(refusal([&] {
          linformer_attention(x, x, x, zeros({3, 5}), zeros({4, 5}));
        }) == "key_projection and value_projection must have the same number of rows, got 3 and 4");
  CHECK(refusal([&] {
          linformer_attention(x, x, x, zeros({3, 3, 5}));
        }) == "the leading axes of key_projection and key must broadcast, got (3,) and (2,)");
  CHECK(refusal([&] {
          linformer_attention(x, x, x, zeros({3, 5}), {.num_threads = -1});
        }) == "num_threads must be at least 1, or 0 for the default, got -1");
  CHECK(refusal([&] { local_global_attention(x, x, x, {}); }) ==
        "radius must be at least 0, got -1");
  CHECK(refusal([&] { local_global_attention(x, x, x, {.radius = 1, .global_tokens = 6}); }) ==
        "global_tokens must be at most the 5 positions, got 6");
  CHECK(refusal([&] { local_global_attention(x, x, x, {.radius = 1, .global_tokens = -1}); }) ==
        "global_tokens must be at least 0, got -1");
  CHECK(refusal([&] {
          local_global_attention(zeros({2, 4, 4}), x, x, {.radius = 1});
        }) == "query and key must have the same number of rows, got 4 and 5");
  CHECK(refusal([&] { local_global_attention(x, x, x, {.radius = 1, .scale = NAN}); }) ==
        "scale must be finite, got nan");
  CHECK(refusal([&] {
          local_global_attention(
              x, x, x, {.radius = 1, .causal = causal_alignment::offset, .causal_offset = 2});
        }) == "causal must align query i with key i here, which is causal_offset = 0, got 2");
  CHECK(refusal([&] {
          differential_attention(x, x, zeros({2, 4, 4}), x, x, 0.5);
        }) == "both maps must have the same heads and queries, got (2, 5) and (2, 4)");
  CHECK(refusal([&] { differential_attention(x, x, x, x, x, NAN); }) ==
        "lam must be finite, got NaN or infinity");
  CHECK(refusal([&] { differential_attention(x, x, x, x, x, {}); }) ==
        "lam must be a number or an array of numbers, got none");
  CHECK(refusal([&] {
          differential_attention(x, x, x, x, x, xt::ones<double>({3, 1}));
        }) == "lam must broadcast to (..., heads, n_queries) = (2, 5), got shape (3, 1)");
}

TEST_CASE("arrays without elements have outputs without elements, or of zeros") {
  const auto none = zeros({0, 4}), x = zeros({3, 4});
  CHECK(linformer_attention(none, x, x, zeros({2, 3})).size() == 0);
  CHECK(xt::all(xt::equal(linformer_attention(x, none, none, zeros({2, 0})), 0.f)));
  CHECK(xt::all(xt::equal(linformer_attention(x, x, x, zeros({0, 3})), 0.f)));
  CHECK(local_global_attention(none, none, none, {.radius = 1}).size() == 0);
  CHECK(local_global_attention(x, x, zeros({3, 0}), {.radius = 1, .global_tokens = 1}).size() == 0);
  CHECK(differential_attention(none, x, none, x, x, 0.5).size() == 0);
}

TEST_CASE("an interruption ends a product") {
  const array x = xt::zeros<double>({5000, 800}), projection = xt::zeros<double>({600, 5000});
  const linformer_attention_options options{.num_threads = 1, .interrupted = [] { return true; }};
  const array query = xt::zeros<double>({1, 800});
  CHECK_THROWS_AS(linformer_attention(query, x, x, projection, options), interrupted);
}

}  // namespace test_composed_attention
