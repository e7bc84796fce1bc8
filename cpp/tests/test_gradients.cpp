// SPDX-License-Identifier: BSD-3-Clause
//
// The backward pass against the oracle's weights: formulas written out in double.
#include <doctest/doctest.h>

#include <cmath>
#include <stdexcept>
#include <string>

#include "attnscale/attention_gradients.hpp"
#include "compare.hpp"

namespace test_gradients {

using attnscale::attention_gradients;
using attnscale::attention_options;
using attnscale::statistic;
using attnscale::statistic_gradients;
using namespace testing;

namespace {

/// Sum over rows i of a(i, j) b(i, c).
oracle::matrix product_of_columns(const oracle::matrix& a, const oracle::matrix& b) {
  return oracle::product(xt::transpose(a), b);
}

double worst(const auto& seen, const oracle::matrix& wanted) {
  double most = 0, size = 1e-300;
  auto it = wanted.begin();
  for (const double x : seen) {
    most = std::max(most, std::abs(x - *it));
    size = std::max(size, std::abs(*it++));
  }
  return most / size;
}

/// grad_output, and gradients 0.7 of lse, -0.3 of the entropy and 0.2 of renyi2, with one scale.
template <class T>
void check_gradients(const inputs<T>& in, const attention_options& options,
                     const oracle::setting& s, double tolerance) {
  CAPTURE(in.query.shape(0));
  CAPTURE(in.key.shape(0));
  const xt::xarray<T> grad = normal<T>({in.query.shape(0), in.value.shape(1)}, 9);
  const auto found = attention_gradients(in.query, in.key, in.value, grad, options,
                                         {.lse = 0.7, .entropy = -0.3, .renyi2 = 0.2});
  const auto e = oracle::attention(in.query, in.key, in.value, s);
  const oracle::matrix q = in.query, k = in.key, v = in.value, g = grad;
  const oracle::matrix dp = oracle::product_transposed(g, v);
  const oracle::column d = xt::sum(g * e.output, {1});
  const oracle::matrix log_p = xt::log(xt::where(e.weights > 0, e.weights, 1.0));
  const oracle::column squares = xt::where(xt::equal(e.concentration, 0.0), 1.0, e.concentration);
  const oracle::matrix ds =
      e.weights * (dp - oracle::as_column(d) + 0.7 + 0.3 * (log_p + oracle::as_column(e.entropy)) -
                   0.4 * (e.weights / oracle::as_column(squares) - 1.0));
  const oracle::matrix scaled = ds * oracle::as_column(s.scale);
  CHECK(worst(found.query, oracle::product(scaled, k)) < tolerance);
  CHECK(worst(found.key, product_of_columns(scaled, q)) < tolerance);
  CHECK(worst(found.value, product_of_columns(e.weights, g)) < tolerance);
  const oracle::column of_scale = xt::sum(ds * e.raw, {1});
  const oracle::column size = xt::sum(xt::abs(ds) * xt::abs(e.raw), {1});
  for (std::size_t i = 0; i < of_scale.size(); ++i)
    CHECK(std::abs(found.scale(i) - of_scale(i)) <= 20 * tolerance * (size(i) + 1e-300));
}

}  // namespace

TEST_CASE("gradients: sizes around lanes, blocks and tiles") {
  for (const std::size_t n_queries : {1, 7, 64, 65, 128, 129, 200})
    for (const std::size_t n_keys : {1, 16, 191, 250}) {
      const inputs<double> wide(n_queries, n_keys, 24, 9);
      check_gradients(wide, {}, wide.setting(), 1e-13);
      const inputs<float> narrow(n_queries, n_keys, 24, 9);
      check_gradients(narrow, {}, narrow.setting(), 4e-6);
    }
}

TEST_CASE("gradients: full blocks of wide heads have room") {
  for (const std::size_t head_dim : {256, 700}) {
    const inputs<double> wide(130, 70, head_dim, 16);
    check_gradients(wide, {}, wide.setting(), 1e-12);
    const inputs<float> narrow(130, 70, head_dim, 16);
    oracle::setting s = narrow.setting();
    for (std::size_t i = 0; i < 130; ++i)
      for (std::size_t j = 0; j < 70; ++j) s.visible(i, j) = j <= i;
    check_gradients(narrow, {.is_causal = true}, s, 2e-5);
  }
}

TEST_CASE("gradients: masks") {
  const inputs<double> in(150, 220, 16, 20);
  oracle::setting s = in.setting();
  for (std::size_t i = 0; i < 150; ++i)
    for (std::size_t j = 0; j < 220; ++j) s.visible(i, j) = j <= i;
  check_gradients(in, {.is_causal = true}, s, 1e-13);
  const xt::xarray<bool> hidden_rows = xt::view(s.visible, xt::all(), xt::all());
  check_gradients(in, {.attn_mask = hidden_rows}, s, 1e-13);
  for (std::size_t j = 0; j < 220; ++j) s.visible(3, j) = false;
  const xt::xarray<bool> mask = s.visible;
  check_gradients(in, {.attn_mask = mask}, s, 1e-13);
}

TEST_CASE("gradients: the same bits for any number of threads, and with a forward pass") {
  const auto q = normal<float>({6, 300, 16}, 1), k = normal<float>({2, 400, 16}, 2),
             v = normal<float>({2, 400, 8}, 3), g = normal<float>({6, 300, 8}, 4);
  const statistic_gradients of{.entropy = 1.0, .max_weight = 0.5};
  attention_options options{.is_causal = true, .enable_gqa = true, .num_threads = 1};
  const auto one = attention_gradients(q, k, v, g, options, of);
  for (const int threads : {2, 3, 8}) {
    options.num_threads = threads;
    const auto more = attention_gradients(q, k, v, g, options, of);
    CHECK(identical(one.query, more.query));
    CHECK(identical(one.key, more.key));
    CHECK(identical(one.value, more.value));
    CHECK(identical(one.scale, more.scale));
  }
  const auto rows = attnscale::attention_statistics(q, k, v, options, attnscale::all_statistics);
  const auto saved = attention_gradients(q, k, v, g, options, of, &rows);
  CHECK(identical(one.query, saved.query));
  CHECK(identical(one.key, saved.key));
}

TEST_CASE("gradients: a forward pass of another call is refused") {
  const inputs<double> in(200, 300, 8, 5), few(3, 300, 8, 5), one(1, 300, 8, 5);
  const auto g = normal<double>({200, 5}, 4);
  auto forward = attnscale::attention_statistics(in.query, in.key, in.value);
  const auto message = [&] {
    return refusal([&] { attention_gradients(in.query, in.key, in.value, g, {}, {}, &forward); });
  };
  CHECK(message() == "no error");
  for (const auto* other : {&few, &one}) {
    forward.lse = attnscale::attention_statistics(other->query, other->key).lse;
    CHECK(message() ==
          "forward must be of the same call, whose rows are (200,), got lse of shape (" +
              std::to_string(other->query.shape(0)) + ",)");
  }
  forward.lse.reset();
  forward.argmax = xt::zeros<std::int64_t>({200, 1});
  CHECK(message() ==
        "forward must be of the same call, whose rows are (200,), got argmax of shape "
        "(200, 1)");
}

TEST_CASE("gradients: a sink's is that of its lse") {
  const inputs<double> in(40, 50, 8, 8);
  const xt::xarray<double> none = xt::zeros<double>({std::size_t{40}, std::size_t{8}});
  const auto found =
      attention_gradients(in.query, in.key, in.value, none,
                          {.normalizer = attnscale::normalizers::sink(0.5)}, {.lse = 1.0});
  const auto rows = attnscale::attention_statistics(
      in.query, in.key, {.normalizer = attnscale::normalizers::sink(0.5)},
      {statistic::sink_weight});
  REQUIRE(found.sink.has_value());
  for (std::size_t i = 0; i < 40; ++i)
    CHECK(std::abs((*found.sink)(i) - (*rows.sink_weight)(i)) < 1e-13);
}

/// Gradients of the sum of grad * output by differences, in one direction of the queries and keys.
TEST_CASE("gradients: sparse rows and their parameters, against differences") {
  namespace normalizers = attnscale::normalizers;
  const inputs<double> in(70, 300, 12, 20);
  const xt::xarray<double> g = normal<double>({70, 20}, 9), way = normal<double>({300, 12}, 5);
  const auto loss = [&](const auto& key, const attnscale::normalizer_choice& rule, double scale) {
    const xt::xarray<double> o =
        attnscale::attention(in.query, key, in.value, {.scale = scale, .normalizer = rule});
    return xt::sum(o * g)();
  };
  const double step = 1e-6;
  for (const double scale : {0.3, 0.01})  // rows of few keys and of all
    for (const auto& rule : {normalizers::sparsemax(), normalizers::entmax(1.5),
                             normalizers::top_k(7), normalizers::top_k(200)}) {
      const auto found =
          attention_gradients(in.query, in.key, in.value, g, {.scale = scale, .normalizer = rule});
      const xt::xarray<double> ahead = in.key + step * way, behind = in.key - step * way;
      const double wanted = (loss(ahead, rule, scale) - loss(behind, rule, scale)) / (2 * step);
      CHECK(std::abs(xt::sum(found.key * way)() - wanted) < 1e-5);
    }
  for (const double scale : {0.3, 0.01}) {
    const auto found = attention_gradients(
        in.query, in.key, in.value, g, {.scale = scale, .normalizer = normalizers::entmax(1.3)});
    const double of_alpha = loss(in.key, normalizers::entmax(1.3 + step), scale) -
                            loss(in.key, normalizers::entmax(1.3 - step), scale);
    CHECK(std::abs(found.alpha.value() - of_alpha / (2 * step)) < 1e-5);
  }
  const auto of_sigmoid = attention_gradients(
      in.query, in.key, in.value, g, {.scale = 0.3, .normalizer = normalizers::sigmoid(0.2)});
  const double of_bias = loss(in.key, normalizers::sigmoid(0.2 + step), 0.3) -
                         loss(in.key, normalizers::sigmoid(0.2 - step), 0.3);
  CHECK(std::abs(xt::sum(of_sigmoid.bias.value())() - of_bias / (2 * step)) < 1e-5);
}

TEST_CASE("gradients: interrupts and refusals") {
  // So long that no machine finishes before the first poll.
  const auto many = normal<float>({100000, 16}, 1);
  for (const int threads : {1, 4}) {
    const attention_options options{.num_threads = threads, .interrupted = [] { return true; }};
    CHECK_THROWS_AS(attention_gradients(many, many, many, many, options), attnscale::interrupted);
  }
  const auto q = normal<float>({2, 2000, 64}, 1), g = normal<float>({2, 2000, 64}, 4);
  const auto wrong = normal<float>({2, 1999, 64}, 4);
  CHECK_THROWS_WITH(
      attention_gradients(q, q, q, wrong),
      "grad_output must have the shape of the output, (2, 2000, 64), got (2, 1999, 64)");
  CHECK_THROWS_WITH(
      attention_gradients(q, q, q, g, {.normalizer = attnscale::normalizers::sparsemax()},
                          {.lse = 1.0}),
      "statistics have gradients only under a softmax, with or without a sink");
}

}  // namespace test_gradients
