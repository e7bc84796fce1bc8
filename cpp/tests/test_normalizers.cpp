// SPDX-License-Identifier: BSD-3-Clause
//
// Every normalizer against its definition as xtensor expressions: masks, sizes, many candidates,
// refusals.
#include <doctest/doctest.h>

#include <functional>
#include <string_view>

#include "attnscale/attention.hpp"
#include "compare.hpp"

namespace test_normalizers {

using attnscale::attention_options;
using attnscale::normalizer_choice;
using attnscale::statistic;
using namespace testing;
namespace normalizers = attnscale::normalizers;

namespace {

/// Weights of all rows from scores, -infinity where a key is hidden.
using definition = std::function<oracle::matrix(const oracle::matrix&)>;

oracle::matrix rows_over(const oracle::matrix& weight, const oracle::column& total) {
  return weight / oracle::as_column(xt::where(xt::equal(total, 0.0), 1.0, total));
}

/// exp(s) / (exp(sink) + sum exp(s)).
oracle::matrix softmax_beside(const oracle::matrix& s, double sink) {
  const oracle::column top = xt::maximum(oracle::row_max(s, sink), sink);
  const oracle::matrix e = xt::exp(s - oracle::as_column(top));
  return rows_over(e, xt::sum(e, {1}) + xt::exp(sink - top));
}

oracle::matrix sigmoid(const oracle::matrix& s, double bias) {
  return 1 / (1 + xt::exp(-s - bias));
}

oracle::matrix relu(const oracle::matrix& s) { return xt::maximum(s, 0.0); }

oracle::matrix softpick(const oracle::matrix& s) {
  const oracle::matrix e = xt::where(xt::equal(s, -oracle::infinity), 0.0, xt::expm1(s));
  return rows_over(xt::maximum(e, 0.0), xt::sum(xt::abs(e), {1}));
}

/// tau by bisection.
oracle::matrix entmax(const oracle::matrix& s, double alpha) {
  const double power = 1 / (alpha - 1);
  const oracle::column top = oracle::row_max(s, 0);
  const oracle::matrix x = (alpha - 1) * (s - oracle::as_column(top));
  oracle::column low = -xt::ones<double>({s.shape(0)}), high = xt::zeros<double>({s.shape(0)});
  for (int i = 0; i < 60; ++i) {
    const oracle::column tau = (low + high) / 2;
    const oracle::column mass =
        xt::sum(xt::pow(xt::maximum(x - oracle::as_column(tau), 0.0), power), {1});
    low = xt::where(mass < 1.0, low, tau);
    high = xt::where(mass < 1.0, tau, high);
  }
  const oracle::matrix p = xt::pow(xt::maximum(x - oracle::as_column(low), 0.0), power);
  return rows_over(p, xt::sum(p, {1}));
}

oracle::matrix top_k(const oracle::matrix& s, std::size_t k) {
  oracle::matrix kept = xt::ones<double>(s.shape()) * -oracle::infinity;
  for (std::size_t i = 0; i < s.shape(0); ++i)
    for (std::size_t j = 0; j < s.shape(1); ++j) {
      std::size_t before = 0;
      for (std::size_t l = 0; l < s.shape(1); ++l)
        before += s(i, l) > s(i, j) || (s(i, l) == s(i, j) && l < j);
      if (before < k) kept(i, j) = s(i, j);
    }
  return softmax_beside(kept, -1e300);
}

struct rule {
  const char* name;
  normalizer_choice choice;
  definition weights;
  bool distribution;  // whether to compare entropy, concentration and support
};

std::vector<rule> all_rules() {
  using oracle::matrix;
  return {
      {"softmax_n", normalizers::softmax_n(2),
       [](const matrix& s) { return softmax_beside(s, std::log(2.0)); }, false},
      {"sink", normalizers::sink(1.5), [](const matrix& s) { return softmax_beside(s, 1.5); },
       false},
      {"sigmoid", normalizers::sigmoid(-3.0), [](const matrix& s) { return sigmoid(s, -3.0); },
       false},
      {"relu", normalizers::relu(0.1), [](const matrix& s) -> matrix { return 0.1 * relu(s); },
       false},
      {"relu over its sum", normalizers::relu(),
       [](const matrix& s) { return rows_over(relu(s), xt::sum(relu(s), {1})); }, true},
      {"squared relu", normalizers::squared_relu(0.2),
       [](const matrix& s) -> matrix { return 0.2 * relu(s) * relu(s); }, false},
      {"softpick", normalizers::softpick(0), softpick, false},
      {"sparsemax", normalizers::sparsemax(), [](const matrix& s) { return entmax(s, 2); }, true},
      {"entmax 1.5", normalizers::entmax(1.5), [](const matrix& s) { return entmax(s, 1.5); },
       true},
      {"entmax 1.4", normalizers::entmax(1.4), [](const matrix& s) { return entmax(s, 1.4); },
       true},
      {"entmax 1.25", normalizers::entmax(1.25), [](const matrix& s) { return entmax(s, 1.25); },
       true},
      {"top 3", normalizers::top_k(3), [](const matrix& s) { return top_k(s, 3); }, true},
      {"top 300", normalizers::top_k(300), [](const matrix& s) { return top_k(s, 300); }, true},
  };
}

template <class A, class B>
double largest_difference(const A& seen, const B& wanted) {
  double worst = 0;
  auto w = wanted.begin();
  for (const double x : seen) {
    const double difference = std::abs(x - *w++);
    worst = difference <= worst ? worst : difference == difference ? difference : oracle::infinity;
  }
  return seen.size() == wanted.size() ? worst : oracle::infinity;
}

/// Compares the output, and the statistics of distributions. A weight changes by as much as scores
/// are rounded.
template <class T>
void check_rule(const rule& r, const inputs<T>& in, attention_options options,
                const oracle::setting& setting) {
  CAPTURE(r.name);
  CAPTURE(sizeof(T));
  CAPTURE(in.query.shape(0));
  CAPTURE(in.key.shape(0));
  options.normalizer = r.choice;
  const oracle::matrix raw = oracle::product_transposed(in.query, in.key);
  const oracle::matrix s =
      xt::where(setting.visible, oracle::scores(raw, setting), -oracle::infinity);
  const oracle::matrix p = xt::where(setting.visible, r.weights(s), 0.0);
  const double limit = sizeof(T) == 4 ? 1e-4 : 1e-11;
  const auto output = attnscale::attention(in.query, in.key, in.value, options);
  CHECK(largest_difference(output, oracle::product(p, in.value)) < limit);
  if (!r.distribution) return;
  const auto rows = attnscale::attention_statistics(
      in.query, in.key, in.value, options,
      {statistic::entropy, statistic::concentration, statistic::max_weight, statistic::support,
       statistic::argmax, statistic::renyi2, statistic::min_score});
  CHECK(identical(*rows.output, output));
  const oracle::column entropy = xt::sum(xt::where(p > 0, -p * xt::log(p), 0.0), {1});
  CHECK(largest_difference(*rows.entropy, entropy) < 10 * limit);
  CHECK(largest_difference(*rows.concentration, oracle::column(xt::sum(p * p, {1}))) < limit);
  CHECK(largest_difference(*rows.max_weight, oracle::row_max(p, 0)) < limit);
  const oracle::column squares = xt::sum(p * p, {1});
  const oracle::column renyi2 = -xt::log(xt::where(xt::equal(squares, 0.0), 1.0, squares));
  CHECK(largest_difference(*rows.renyi2, renyi2) < 10 * limit);
  const auto finite = [](const oracle::column& x) -> oracle::column {
    return xt::where(xt::isinf(x), 0.0, x);
  };
  const oracle::matrix negative = xt::where(setting.visible, -s, -oracle::infinity);
  const oracle::column least = -oracle::row_max(negative, -oracle::infinity);
  CHECK(largest_difference(finite(*rows.min_score), finite(least)) < limit);
  const oracle::column support = xt::sum(xt::cast<double>(p > 0), {1});
  CHECK(largest_difference(*rows.support, support) <= (sizeof(T) == 4 ? 1 : 0));
}

}  // namespace

TEST_CASE("normalizers on sizes around lanes, blocks and tiles") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const auto& [n_queries, n_keys] :
         {std::array<std::size_t, 2>{1, 1}, {3, 250}, {9, 193}, {33, 64}, {70, 400}})
      for (const rule& r : all_rules()) {
        const inputs<T> in(n_queries, n_keys, 10, 19, 2);
        check_rule(r, in, {}, in.setting());
      }
  });
}

TEST_CASE("normalizers under masks, soft-cap and negative scales") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const inputs<T> in(67, 203, 12, 5, 2);
    oracle::setting causal = in.setting(), biased = in.setting();
    for (std::size_t i = 0; i < 67; ++i)
      for (std::size_t j = 0; j < 203; ++j) causal.visible(i, j) = j <= i;
    causal.scale.fill(-0.7);
    biased.bias = normal<double>({67, 203}, 9);
    biased.softcap = 3;
    const xt::xarray<double> bias = biased.bias;
    for (const rule& r : all_rules()) {
      check_rule(r, in, {.scale = -0.7, .is_causal = true}, causal);
      check_rule(r, in, {.attn_mask = bias, .softcap = 3.0}, biased);
    }
  });
}

TEST_CASE("rows with more candidates than a short list holds") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const std::size_t n_queries : {2, 17}) {
      const inputs<T> in(n_queries, 1700, 6, 4, 0.05);
      for (const rule& r : all_rules())
        if (r.distribution && r.choice.numbers.k != 3) check_rule(r, in, {}, in.setting());
      const rule most{"top 1000", normalizers::top_k(1000),
                      [](const oracle::matrix& s) { return top_k(s, 1000); }, true};
      check_rule(most, in, {}, in.setting());
    }
  });
}

TEST_CASE("rows whose scores are all kept: masks, key lengths, kinds of powers") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    const inputs<T> in(19, 500, 6, 5, 0.05);
    oracle::setting causal = in.setting(), biased = in.setting();
    for (std::size_t i = 0; i < 19; ++i)
      for (std::size_t j = 0; j < 500; ++j) causal.visible(i, j) = j <= i + 461 && j < 480;
    biased.bias = 0.05 * normal<double>({19, 500}, 9);
    for (std::size_t j = 0; j < 500; ++j) {
      biased.bias(4, j) = biased.bias(j % 19, j) = -oracle::infinity;
      biased.visible(4, j) = biased.visible(j % 19, j) = false;
    }
    const xt::xarray<double> bias = biased.bias;
    biased.bias = xt::where(biased.visible, biased.bias, 0.0);
    std::vector<rule> rules = {{"top 450", normalizers::top_k(450),
                                [](const oracle::matrix& s) { return top_k(s, 450); }, true}};
    // 1 / (alpha - 1) is 1, 2, 5, 7/2 and neither whole nor half.
    for (const double alpha : {2.0, 1.5, 1.2, 1 + 2.0 / 7, 1.3})
      rules.push_back({"entmax", normalizers::entmax(alpha),
                       [alpha](const oracle::matrix& s) { return entmax(s, alpha); }, true});
    for (const rule& r : rules) {
      CAPTURE(r.choice.numbers.alpha);
      check_rule(r, in, {}, in.setting());
      check_rule(r, in, {.attn_mask = bias}, biased);
      check_rule(r, in, {.causal = attnscale::causal_alignment::bottom_right, .key_lengths = 480},
                 causal);
    }
  });
}

TEST_CASE("kept scores of more tiles than one sum takes") {
  const inputs<float> in(9, 6500, 4, 3, 0.01);
  for (const rule& r : all_rules())
    if (r.distribution && r.choice.numbers.k != 3 && r.choice.numbers.k != 300)
      check_rule(r, in, {}, in.setting());
}

TEST_CASE("a sink is one more outcome of the statistics") {
  const inputs<double> in(5, 20000, 8, 3);  // enough to split the keys
  const auto plain = attnscale::attention_statistics(in.query, in.key, in.value);
  const auto rows = attnscale::attention_statistics(
      in.query, in.key, in.value, {.normalizer = normalizers::sink(4.0)},
      {statistic::lse, statistic::entropy, statistic::mean_score, statistic::sink_weight});
  for (std::size_t i = 0; i < 5; ++i) {
    const double keys = (*plain.lse)(i),
                 both = std::max(keys, 4.0) + std::log1p(std::exp(-std::abs(keys - 4.0)));
    CHECK((*rows.lse)(i) == doctest::Approx(both).epsilon(1e-14));
    CHECK((*rows.sink_weight)(i) == doctest::Approx(std::exp(4.0 - both)).epsilon(1e-12));
    CHECK((*rows.entropy)(i) ==
          doctest::Approx((*rows.lse)(i) - (*rows.mean_score)(i)).epsilon(1e-11));
    for (std::size_t c = 0; c < 3; ++c)
      CHECK((*rows.output)(i, c) ==
            doctest::Approx((*plain.output)(i, c) * std::exp(keys - both)).epsilon(1e-12));
  }
}

TEST_CASE("numbers of a normalizer are one a head or one a row") {
  const auto q = normal<float>({2, 20, 8}, 1), k = normal<float>({2, 30, 8}, 2),
             v = normal<float>({2, 30, 6}, 3);
  const xt::xtensor<double, 2> logits = {{0.5}, {-1.0}};
  const auto all = attnscale::attention(q, k, v, {.normalizer = normalizers::sink(logits)});
  for (std::size_t h = 0; h < 2; ++h) {
    const auto one = attnscale::attention(xt::view(q, h), xt::view(k, h), xt::view(v, h),
                                          {.normalizer = normalizers::sink(logits(h, 0))});
    CHECK(identical(xt::xarray<float>(xt::view(all, h)), one));
  }
}

TEST_CASE("normalizers refuse what they cannot take") {
  const inputs<float> in(3, 4, 2, 2);
  const auto message = [&](const normalizer_choice& choice) {
    return refusal(
        [&] { attnscale::attention(in.query, in.key, in.value, {.normalizer = choice}); });
  };
  CHECK(message(normalizers::entmax(1)).starts_with("alpha must be above 1"));
  CHECK(message(normalizers::entmax(oracle::infinity)).starts_with("alpha must be above 1"));
  CHECK(message(normalizers::top_k(0)).starts_with("k must be at least 1"));
  CHECK(message(normalizers::softpick(-1)).starts_with("eps must be finite"));
  CHECK(message(normalizers::sink(-oracle::infinity)) ==
        "the numbers of the normalizer must be finite, got -inf");
  CHECK(message(normalizers::sink(xt::xarray<double>{1.0, 2.0}))
            .starts_with("the numbers of the normalizer must broadcast"));
  const attention_options sparse{.normalizer = normalizers::sparsemax()};
  CHECK(refusal([&] {
          attnscale::attention_statistics(in.query, in.key, sparse);
        }).starts_with("this normalizer has no such statistic: lse"));
  CHECK(refusal([&] {
          attnscale::entropy_curve(in.query, in.key, {1.0}, sparse);
        }).starts_with("entropy_curve needs a plain softmax"));
}

TEST_CASE("normalizers and statistics are known by their names") {
  for (const attnscale::normalizer_traits& each : attnscale::all_normalizers)
    CHECK(attnscale::normalizer_named(each.name) == each.rule);
  CHECK(refusal([] { attnscale::normalizer_named("softmin"); }) ==
        "there is no normalizer softmin");
  for (const std::string_view name : attnscale::statistic_names)
    CHECK(attnscale::name_of(attnscale::statistic_named(name)) == name);
  CHECK(attnscale::statistic_named("max_weight") == statistic::max_weight);
  CHECK(refusal([] { attnscale::statistic_named("mode"); }) == "there is no statistic mode");
}

TEST_CASE("a relu over its sum does not depend on the size of its scores") {
  for (const std::size_t n_queries : {3, 40}) {
    const auto q = normal<float>({n_queries, 8}, 1), k = normal<float>({400, 8}, 2),
               v = normal<float>({400, 5}, 3);
    for (const auto& choice : {normalizers::relu(), normalizers::squared_relu()}) {
      const auto wanted = attnscale::attention(q, k, v, {.scale = 1.0, .normalizer = choice});
      // Powers of two, which change no digit.
      for (const double scale : {0x1p-100, 0x1p-60, 0x1p60, 0x1p115})
        CHECK(identical(attnscale::attention(q, k, v, {.scale = scale, .normalizer = choice}),
                        wanted));
    }
  }
}

}  // namespace test_normalizers
