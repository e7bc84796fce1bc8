// SPDX-License-Identifier: BSD-3-Clause
//
// kattention, its score functions, and relay nodes against plain loops in double; gradients against
// central differences; refusals.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "attnscale/kattention.hpp"
#include "attnscale/relay_attention.hpp"
#include "attnscale/score_functions.hpp"
#include "central_differences.hpp"
#include "compare.hpp"
#include "linear_loops.hpp"

namespace test_kattention {

using namespace attnscale;
using namespace testing;
using loops::difference;
using loops::matrix;

namespace {

using array = xt::xarray<double>;
using vector = std::vector<double>;

template <class T>
constexpr double near = std::is_same_v<T, float> ? 4e-5 : 1e-12;

/// -scale |q_i + b - k_j|^2 / 2.
double gaussian(const matrix& query, const matrix& key, const vector& bias, double scale,
                std::size_t i, std::size_t j) {
  double square = 0;
  for (std::size_t c = 0; c < query.shape(1); ++c) {
    const double apart = query(i, c) + bias[c] - key(j, c);
    square += apart * apart;
  }
  return -scale * square / 2;
}

matrix gaussian_kernel(const matrix& query, const matrix& key, const matrix& value,
                       const vector& bias, double scale, bool causal = false) {
  return loops::weighted(query.shape(0), value, causal ? 0 : loops::everything, true,
                         [&](std::size_t i, std::size_t j, std::size_t) {
                           return std::exp(gaussian(query, key, bias, scale, i, j));
                         });
}

/// Rows times the transposed weight.
matrix mapped(const matrix& rows, const matrix& weight) {
  matrix found = xt::zeros<double>({rows.shape(0), weight.shape(0)});
  for (std::size_t i = 0; i < rows.shape(0); ++i)
    for (std::size_t j = 0; j < weight.shape(0); ++j)
      for (std::size_t c = 0; c < rows.shape(1); ++c) found(i, j) += rows(i, c) * weight(j, c);
  return found;
}

double dot(const matrix& a, std::size_t i, const matrix& b, std::size_t j) {
  double sum = 0;
  for (std::size_t c = 0; c < a.shape(1); ++c) sum += a(i, c) * b(j, c);
  return sum;
}

/// Matrix of score(i, j) for all pairs.
template <class Score>
matrix all_pairs(std::size_t n, std::size_t m, Score score) {
  matrix found = xt::zeros<double>({n, m});
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < m; ++j) found(i, j) = score(i, j);
  return found;
}

}  // namespace

TEST_CASE("kattention of given queries and keys is a Gaussian kernel") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const std::size_t n : {1, 7, 130}) {
      const auto q = normal<T>({4, n, 5}, 1), k = normal<T>({2, n, 5}, 2),
                 v = normal<T>({2, n, 3}, 3);
      const array bias = normal<double>({4, 5}, 4);
      const attention_options options{.scale = 0.3, .is_causal = true, .enable_gqa = true};
      const auto seen = kattention_heads(q, k, v, options, bias);
      static_assert(std::is_same_v<decltype(seen), const dense_array<T>>);
      const auto plain = kattention_heads(q, k, v, {.enable_gqa = true});
      for (std::size_t h = 0; h < 4; ++h) {
        const matrix query = xt::view(q, h), key = xt::view(k, h / 2), value = xt::view(v, h / 2);
        const auto row = xt::view(bias, h);
        CHECK(difference(xt::view(seen, h),
                         gaussian_kernel(query, key, value, {row.begin(), row.end()}, 0.3, true)) <
              near<T>);
        CHECK(difference(xt::view(plain, h), gaussian_kernel(query, key, value, vector(5, 0.0),
                                                             1 / std::sqrt(5.0))) < near<T>);
      }
      const xt::xarray<T, xt::layout_type::column_major> turned = q;
      CHECK(identical(kattention_heads(turned, k, v, options, bias), seen));
    }
  });
  const auto one = normal<double>({6, 5}, 1);
  const array same = array{0.3, 0.3, 0.3, 0.3, 0.3};
  CHECK(identical(kattention_heads(one, one, one, {}, 0.3),
                  kattention_heads(one, one, one, {}, same)));
}

TEST_CASE(
    "statistics of kattention are of the score, and its distances' but for a term of the row") {
  const auto q = normal<double>({9, 4}, 1), k = normal<double>({13, 4}, 2),
             v = normal<double>({13, 2}, 3);
  const array bias = array{0.5, -1.0, 0.0, 2.0};
  const auto rows = kattention_statistics(q, k, v, {.scale = 0.7}, bias);
  CHECK(identical(*rows.output, kattention_heads(q, k, v, {.scale = 0.7}, bias)));
  const auto alone = kattention_statistics(q, k, {.scale = 0.7}, bias, {statistic::entropy});
  CHECK(!alone.output);
  CHECK(!alone.lse);
  CHECK(difference(*alone.entropy, *rows.entropy) < 1e-12);
  for (std::size_t i = 0; i < 9; ++i) {
    double sum = 0, entropy = 0, square = 0;
    for (std::size_t j = 0; j < 13; ++j)
      sum += std::exp(gaussian(q, k, {0.5, -1, 0, 2}, 0.7, i, j));
    for (std::size_t j = 0; j < 13; ++j) {
      const double weight = std::exp(gaussian(q, k, {0.5, -1, 0, 2}, 0.7, i, j)) / sum;
      entropy -= weight * std::log(weight);
    }
    for (std::size_t c = 0; c < 4; ++c) square += std::pow(q(i, c) + bias(c), 2);
    CHECK((*rows.lse)(i)-0.35 * square == doctest::Approx(std::log(sum)).epsilon(1e-12));
    CHECK((*rows.entropy)(i) == doctest::Approx(entropy).epsilon(1e-12));
  }
}

TEST_CASE("laws and the default scale see the head dimension without the added channel") {
  const auto q = normal<double>({2, 8, 4}, 1), k = normal<double>({2, 8, 4}, 2);
  CHECK(identical(kattention_heads(q, k, k), kattention_heads(q, k, k, {.scale = 0.5})));
  CHECK(identical(kattention_heads(q, k, k, {.scale = laws::mup{}}),
                  kattention_heads(q, k, k, {.scale = 0.25})));
  array of_row = xt::zeros<double>({8});
  for (std::size_t i = 0; i < 8; ++i) of_row(i) = std::log2(double(i + 1)) / 2;
  CHECK(difference(kattention_heads(q, k, k, {.scale = laws::log_n{.base = 2}, .is_causal = true}),
                   kattention_heads(q, k, k, {.scale = of_row, .is_causal = true})) < 1e-13);
  CHECK(refusal([&] { kattention_heads(q, k, k, {.scale = laws::critical_scale{}}); }) ==
        "scale='critical_scale' measures rows of dot products, and kattention's scores are others; "
        "pass a number, an array or a law of n");
  auto broken = k;
  xt::view(broken, xt::all(), xt::range(5, 8)) = NAN;
  CHECK(difference(kattention_heads(q, broken, k, {.key_lengths = 5}),
                   kattention_heads(q, k, k, {.key_lengths = 5})) == 0);
}

TEST_CASE("kattention of normalised rows, and under a law of the distance") {
  auto q = normal<double>({8, 4}, 1), k = normal<double>({8, 4}, 2);
  const auto v = normal<double>({8, 3}, 3);
  const array factor = xt::sqrt(1 + 2 * xt::log1p(xt::arange<double>(8) / 3));
  const array bias = -2 * xt::log1p(xt::arange<double>(8) / 3);
  const matrix far = loops::weighted(
      8, v, loops::everything, true, [&](std::size_t i, std::size_t j, std::size_t) {
        const std::size_t t = i > j ? i - j : j - i;
        return std::exp(0.5 * factor(t) * (dot(q, i, k, j) - dot(k, j, k, j) / 2) + bias(t));
      });
  CHECK(difference(kattention_heads(q, k, v, {.scale = laws::scale_invariant{3}}), far) < 1e-13);
  const array given = kattention_heads(q, k, v, {.scale = 2, .qk_norm = row_norm::l2});
  for (std::size_t i = 0; i < 8; ++i) {
    xt::view(q, i) /= std::sqrt(dot(q, i, q, i));
    xt::view(k, i) /= std::sqrt(dot(k, i, k, i));
  }
  CHECK(difference(given, gaussian_kernel(q, k, v, vector(4), 2)) < 1e-13);
}

TEST_CASE("kattention of x maps it by its weights") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const auto x = normal<T>({2, 11, 6}, 1), qw = normal<T>({3, 4, 6}, 2, 0.5),
               kw = normal<T>({3, 4, 6}, 3, 0.5);
    const array bias = normal<double>({3, 4}, 4);
    const auto seen = kattention(x, qw, kw, {.scale = 0.4, .is_causal = true}, bias);
    CHECK(seen.shape() == typename dense_array<T>::shape_type{2, 3, 11, 6});
    for (std::size_t b = 0; b < 2; ++b)
      for (std::size_t h = 0; h < 3; ++h) {
        const matrix rows = xt::view(x, b);
        const auto row = xt::view(bias, h);
        const matrix wanted =
            gaussian_kernel(mapped(rows, xt::view(qw, h)), mapped(rows, xt::view(kw, h)), rows,
                            {row.begin(), row.end()}, 0.4, true);
        CHECK(difference(xt::view(seen, b, h), wanted) < near<T>);
      }
    const auto one = kattention(x, xt::view(qw, 1), xt::view(kw, 1));
    CHECK(one.shape() == x.shape());
    const matrix rows = xt::view(x, 0);
    CHECK(difference(xt::view(one, 0),
                     gaussian_kernel(mapped(rows, xt::view(qw, 1)), mapped(rows, xt::view(kw, 1)),
                                     rows, vector(4, 0.0), 1)) < near<T>);
    const auto first = xt::view(x, 0);
    CHECK(difference(kattention(first, xt::view(qw, 1), xt::view(kw, 1)), xt::view(one, 0)) == 0);
  });
  const auto x = normal<float>({5, 3}, 1);
  const auto w = normal<double>({2, 3}, 2);
  static_assert(std::is_same_v<decltype(kattention(x, w, w)), dense_array<float>>);
  CHECK(difference(kattention(x, w, w), kattention(xt::xarray<double>(x), w, w)) < 1e-6);
}

TEST_CASE("score functions are their definitions") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const auto x = normal<T>({2, 7, 6}, 1), y = normal<T>({9, 6}, 2),
               qw = normal<T>({4, 6}, 3, 0.5), kw = normal<T>({4, 6}, 4, 0.5),
               b = normal<T>({4}, 5), c = normal<T>({4}, 6);
    namespace f = score_functions;
    const auto f1 = f::f1(x, y, qw, kw, 2.5), f2 = f::f2(x, y, qw, kw), f3 = f::f3(x, y, qw, kw);
    const auto f4 = f::f4(x, y, qw, kw, b), f5 = f::f5(x, y, kw, b), f6 = f::f6(x, y, qw, kw, b, c);
    const matrix rows = xt::view(x, 1), keys = y, step = xt::view(b, xt::newaxis(), xt::all()),
                 other = xt::view(c, xt::newaxis(), xt::all());
    const matrix qx = mapped(rows, qw), ky = mapped(keys, kw), kx = mapped(rows, kw);
    const auto check = [&](const auto& seen, auto score) {
      CHECK(seen.shape() == typename dense_array<T>::shape_type{2, 7, 9});
      CHECK(difference(xt::view(seen, 1), all_pairs(7, 9, score)) < near<T>);
    };
    const auto half = [](const matrix& a, std::size_t i) { return dot(a, i, a, i) / 2; };
    check(f1, [&](auto i, auto j) { return dot(qx, i, ky, j) / 2.5; });
    check(f2, [&](auto i, auto j) { return dot(qx, i, ky, j) - half(keys, j); });
    check(f3, [&](auto i, auto j) { return dot(qx, i, ky, j) - half(ky, j); });
    check(f4,
          [&](auto i, auto j) { return dot(qx, i, ky, j) - half(ky, j) + dot(step, 0, ky, j); });
    check(f5,
          [&](auto i, auto j) { return dot(kx, i, ky, j) - half(ky, j) + dot(step, 0, ky, j); });
    check(f6, [&](auto i, auto j) {
      return dot(qx, i, ky, j) - half(ky, j) - half(qx, i) + dot(step, 0, ky, j) +
             dot(other, 0, qx, i);
    });
  });
}

TEST_CASE("kattention and its score functions refuse what does not fit") {
  const xt::xarray<float> x = xt::ones<float>({5, 6}), w = xt::ones<float>({4, 6});
  const auto ones = [](const shape_type& shape) { return array(xt::ones<double>(shape)); };
  CHECK(refusal([&] { kattention(ones({6}), w, w); }) ==
        "x must have at least 2 axes (..., n, embed_dim), got shape (6,)");
  CHECK(refusal([&] {
          kattention(x, ones({4, 5}), w);
        }) ==
        "q_weight must have embed_dim = 6 columns, as many as x has channels, got shape (4, 5)");
  CHECK(refusal([&] {
          kattention(x, ones({2, 2, 4, 6}), w);
        }) ==
        "q_weight must be (head_dim, embed_dim) or (heads, head_dim, embed_dim), got shape "
        "(2, 2, 4, 6)");
  CHECK(refusal([&] {
          kattention(x, w, ones({3, 6}));
        }) == "q_weight and k_weight must have the same shape, got (4, 6) and (3, 6)");
  CHECK(refusal([&] { kattention(x, w, w, {}, ones({3})); }) ==
        "bias must broadcast to (..., heads, head_dim) = (1, 4), got shape (3,)");
  namespace f = score_functions;
  CHECK(refusal([&] { f::f1(x, x, w, w, 0); }) == "divisor must not be 0");
  CHECK(refusal([&] { f::f1(x, x, w, w, NAN); }) == "divisor must be finite, got nan");
  CHECK(refusal([&] { f::f4(x, x, w, w, ones({3})); }) ==
        "bias must have shape (head_dim,) = (4,), got (3,)");
  CHECK(refusal([&] {
          f::f1(x, x, w, ones({3, 6}));
        }) == "q_weight and k_weight must have the same head_dim, got 4 and 3");
  CHECK(refusal([&] {
          f::f1(x, ones({5, 5}), w, w);
        }) == "x and y must have the same embed_dim, got 6 and 5");
  CHECK(refusal([&] {
          f::f2(x, x, ones({2, 4, 6}), w);
        }) == "q_weight must be (head_dim, embed_dim), got shape (2, 4, 6)");
}

TEST_CASE("relay nodes are softmax averages of the sequence") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const auto x = normal<T>({2, 40, 5}, 1), centres = normal<T>({3, 5}, 2, 0.5),
               v = normal<T>({2, 40, 4}, 3);
    const auto state = relay_attention(x, centres, v);
    const auto own = relay_attention(x, centres, {.num_threads = 1});
    for (std::size_t b = 0; b < 2; ++b) {
      const matrix rows = xt::view(x, b), mu = centres, value = xt::view(v, b);
      const auto weight = [&](std::size_t k, std::size_t i, std::size_t) {
        return std::exp(dot(mu, k, rows, i));
      };
      CHECK(difference(xt::view(state.output, b),
                       loops::weighted(3, value, loops::everything, true, weight)) < near<T>);
      CHECK(difference(xt::view(own.output, b),
                       loops::weighted(3, rows, loops::everything, true, weight)) < near<T>);
      for (std::size_t k = 0; k < 3; ++k) {
        double sum = 0, mean = 0;
        for (std::size_t i = 0; i < 40; ++i) sum += weight(k, i, 0);
        for (std::size_t i = 0; i < 40; ++i) mean += weight(k, i, 0) / sum * dot(mu, k, rows, i);
        CHECK(state.lse(b, k) == doctest::Approx(std::log(sum)).epsilon(near<T>));
        CHECK(state.entropy()(b, k) == doctest::Approx(std::log(sum) - mean).epsilon(near<T>));
      }
    }
    const auto part = [&](std::size_t from, std::size_t to) {
      return relay_attention(xt::view(x, xt::all(), xt::range(from, to)), centres);
    };
    CHECK(difference(merge_states<T>({part(0, 11), part(11, 40)}).output, own.output) < near<T>);
  });
}

TEST_CASE("gradients of relay nodes are the differences of the nodes") {
  array x = normal<double>({2, 7, 3}, 1), centres = normal<double>({4, 3}, 2),
        v = normal<double>({7, 2}, 3);
  const array grad = normal<double>({4, 1}, 4);
  const auto loss = [&] { return xt::sum(grad * relay_attention(x, centres, v).output)(); };
  const auto found = relay_attention_gradients(x, centres, v, grad);
  CHECK(difference(found.x, differences(x, loss)) < 1e-7);
  CHECK(difference(found.centres, differences(centres, loss)) < 1e-7);
  CHECK(difference(found.value, differences(v, loss)) < 1e-7);
  CHECK(refusal([&] { relay_attention_gradients(x, centres, v, v); }) ==
        "grad_output must broadcast to the nodes = (2, 4, 2), got shape (7, 2)");
}

TEST_CASE("energies of relay nodes, and messages that are their gradients") {
  array x = normal<double>({2, 9, 3}, 1);
  const auto centres = normal<double>({4, 3}, 2), weight = normal<double>({4, 4}, 3);
  for (const auto kind : {relay_energy_kind::bilinear, relay_energy_kind::residual}) {
    const array nodes = relay_attention(x, centres).output;
    const auto energy = relay_energy(nodes, weight, kind);
    CHECK(energy.shape() == dense_array<double>::shape_type{2});
    const matrix b = xt::view(nodes, 1);
    double wanted = 0;
    for (std::size_t l = 0; l < 4; ++l) {
      for (std::size_t k = 0; k < 4 && kind == relay_energy_kind::bilinear; ++k)
        wanted += weight(k, l) * dot(b, k, b, l);
      for (std::size_t c = 0; c < 3 && kind == relay_energy_kind::residual; ++c) {
        double rest = -b(l, c);
        for (std::size_t k = 0; k < 4; ++k) rest += weight(k, l) * b(k, c);
        wanted -= rest * rest;
      }
    }
    CHECK(energy(1) == doctest::Approx(wanted).epsilon(1e-12));
    const auto message = relay_message(x, centres, relay_energy_gradient(nodes, weight, kind));
    CHECK(difference(message, differences(x, [&] {
                       const auto all =
                           relay_energy(relay_attention(x, centres).output, weight, kind);
                       return all(0) + all(1);
                     })) < 1e-7);
  }
  const auto nodes = normal<float>({2, 4, 3}, 4);
  const auto left = normal<float>({2, 4}, 5), right = normal<float>({2, 4}, 6);
  const matrix l = xt::transpose(matrix(left)), r = xt::transpose(matrix(right));
  const matrix b = xt::transpose(matrix(xt::view(nodes, 0)));
  const matrix wanted = xt::transpose(mapped(mapped(b, xt::transpose(r)), l));
  CHECK(difference(xt::view(relay_energy_gradient(nodes, left, right), 0), wanted) < 1e-12);
}

TEST_CASE("energies of relay nodes refuse what does not fit") {
  const array nodes = xt::ones<double>({4, 3}), square = xt::ones<double>({4, 4});
  CHECK(refusal([&] { relay_energy(nodes, nodes); }) ==
        "weight must be a matrix (K, K), got shape (4, 3)");
  CHECK(refusal([&] { relay_energy(array(xt::ones<double>({3})), square); }) ==
        "nodes must have at least 2 axes (..., K, dim), got shape (3,)");
  const array small = xt::ones<double>({3, 3});
  CHECK(refusal([&] { relay_energy_gradient(nodes, small); }) ==
        "weight must have one column for each of the 4 nodes, got (3, 3)");
  CHECK(refusal([&] { relay_energy_gradient(nodes, square, small); }) ==
        "L and R must have the same shape (D, K), got (4, 4) and (3, 3)");
  CHECK(refusal([&] { relay_energy_gradient(nodes, small, small); }) ==
        "L must have one column for each of the 4 nodes, got (3, 3)");
  CHECK(refusal([&] { relay_message(nodes, small, nodes); }) ==
        "gradient must have the shape of the nodes, (3, 3), got (4, 3)");
}

}  // namespace test_kattention
