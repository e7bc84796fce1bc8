// SPDX-License-Identifier: BSD-3-Clause
//
// tally.hpp and experiments.hpp: sums in parts, estimates against theory, stopping, resuming from a
// state, interrupts and refusals.
#include "attnscale/experiments.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

namespace test_experiments {

using attnscale::experiment_result;
using attnscale::experiment_state;
using attnscale::run_options;
using attnscale::tally;
namespace laws = attnscale::laws;

namespace {

/// Whether two results are equal bit for bit, NaN included.
bool same(const experiment_result& a, const experiment_result& b) {
  const auto equal = [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); };
  bool all = a.samples == b.samples && a.estimates.size() == b.estimates.size();
  for (std::size_t i = 0; all && i < a.estimates.size(); ++i)
    all = equal(a.estimates[i].value, b.estimates[i].value) &&
          equal(a.estimates[i].standard_error, b.estimates[i].standard_error);
  return all;
}

/// Distance of an estimate from the exact value, in its standard errors.
double misses(const attnscale::estimate& found, double exact) {
  return std::abs(found.value - exact) / found.standard_error;
}

run_options drawn(std::int64_t samples) { return {.samples = samples, .seed = 3}; }

/// An experiment of every kind of rows.
experiment_result of_kind(int kind, const run_options& how) {
  switch (kind) {
    case 0:
      return attnscale::dot_product_variance({.head_dim = 5, .query_mean = 1}, how);
    case 1:
      return attnscale::softmax_saturation({.head_dim = 8, .n = 20}, how);
    case 2:
      return attnscale::sparsity({.n = 20, .law = {laws::standard{}, 0.5}}, how);
    case 3:
      return attnscale::jl_distortion({.n = 6, .dim = 9, .k = 4, .eps = {0.3, 0.6}}, how);
    default:
      return attnscale::max_cosine({.n = 20, .head_dim = 8}, how);
  }
}

}  // namespace

TEST_CASE("a tally does not depend on the pieces") {
  const std::vector<double> rows{1, 10, 2, 30, 4, 20, 3, 60};
  tally whole(2), pieces(2);
  whole.add(rows.data(), 4);
  pieces.add(rows.data(), 1);
  pieces.add(rows.data() + 2, 0);
  tally further(2, 1, pieces.kept());
  further.add(rows.data() + 2, 3);
  CHECK(further.rows() == 4);
  CHECK(whole.mean() == std::vector<double>{2.5, 30});
  CHECK(further.mean() == whole.mean());
  CHECK(further.covariance() == whole.covariance());
  CHECK(whole.covariance()[1] == doctest::Approx(10));
  CHECK(whole.covariance()[3] == doctest::Approx(1400.0 / 3));
  CHECK(whole.standard_error()[1] == doctest::Approx(std::sqrt(1400.0 / 12)));
  CHECK(std::isnan(tally(3).mean()[0]));
  CHECK(std::isnan(pieces.standard_error()[0]));
}

TEST_CASE("columns of different entries have no covariance, and wrong sizes are refused") {
  const std::vector<double> rows{1, 10, 2, 30};
  tally entries(1, 2);
  entries.add(rows.data(), 2);
  CHECK(entries.covariance() == std::vector<double>{0.5, 200});
  CHECK_THROWS_WITH(tally(0), "columns must be at least 1, got 0");
  CHECK_THROWS_WITH(tally(1, -2), "entries must be at least 1, got -2");
  CHECK_THROWS_WITH(tally(2, 2, entries.kept()), "products must have 8 numbers, got 2");
  CHECK_THROWS_WITH(entries.add(rows.data(), -1), "count must be at least 0, got -1");
}

TEST_CASE("the variance of q . k is d (v_q v_k + v_k m_q^2 + v_q m_k^2)") {
  const auto found = attnscale::dot_product_variance(
      {.head_dim = 16, .query_mean = 0.5, .key_mean = -1, .std = 2}, {.seed = 1});
  CHECK(found.samples == 102'400);
  CHECK(misses(found.at("variance"), 16 * (16 + 4 * 0.25 + 4)) < 4);
  CHECK(misses(found.at("scaled_variance"), 21) < 4);
  CHECK(misses(found.at("mean"), -8) < 4);
  const auto plain = attnscale::dot_product_variance({.head_dim = 64}, drawn(100'000));
  CHECK(plain.samples == 100'032);
  CHECK(misses(plain.at("variance"), 64) < 4);
  CHECK(misses(plain.at("kurtosis"), 3 + 6.0 / 64) < 4);
}

TEST_CASE("rows have the entropy, concentration and needles of theory") {
  // The entropy of n normal scores at multiplier b is about ln n - b^2 / 2.
  const auto rows = attnscale::entropy_vs_length(
      {.n = 20'000, .law = {0.0, 0.5}, .head_dim = 1, .model = attnscale::score_model::gaussian},
      drawn(300));
  CHECK(rows.value(0) == doctest::Approx(std::log(20'000)).epsilon(1e-9));
  CHECK(rows.value(1) == doctest::Approx(std::log(20'000) - 0.125).epsilon(2e-3));
  CHECK(rows.at("lse", 1).value == doctest::Approx(std::log(20'000) + 0.125).epsilon(2e-3));
  // On the sphere of three dimensions a cosine is uniform: all n - 1 are below c with probability
  // ((1 + c) / 2)^(n - 1), and the mean of the largest of n is (n - 1) / (n + 1).
  const auto needle = attnscale::needle_dilution(
      {.n = 10, .law = {0.0, laws::standard{}}, .head_dim = 3, .cosine = 0.8}, drawn(4000));
  CHECK(misses(needle.at("needle_is_top", 1), std::pow(0.9, 9)) < 4);
  CHECK(needle.value() == doctest::Approx(0.1));
  const auto found =
      attnscale::head_dimension({.head_dim = 3, .n = 10, .cosine = 0.8}, drawn(4000));
  CHECK(misses(found.at("accuracy"), std::pow(0.9, 9)) < 4);
  CHECK(misses(attnscale::max_cosine({.n = 9, .head_dim = 3}, drawn(4000)).at("max_cosine"), 0.8) <
        4);
  const auto mean = attnscale::averaging_error({.n = 50, .law = {0.0}}, drawn(4000));
  CHECK(misses(mean.at("error_variance"), 0.02) < 4);
  CHECK(mean.at("concentration").value == doctest::Approx(0.02));
}

TEST_CASE("saturation, sparsity and projections are what they say") {
  const auto rows = attnscale::softmax_saturation({.head_dim = 512, .n = 64}, drawn(200));
  CHECK(rows.entries == std::vector<std::string>{"standard", "unscaled"});
  CHECK(rows.at("saturated", 0).value == 0);
  CHECK(rows.at("saturated", 1).value > 0.5);
  CHECK(rows.at("saturated", 0).standard_error > 0);
  CHECK(rows.at("gradient_norm", 0).value ==
        doctest::Approx(rows.at("jacobian_norm", 0).value / std::sqrt(512)));
  const auto keys = attnscale::sparsity(
      {.n = 40,
       .law = {0.0, laws::standard{}},
       .normalizer = {attnscale::normalizers::softmax(), attnscale::normalizers::top_k(3)}},
      drawn(30));
  CHECK(keys.entries[3] == "standard, top_k(k=3)");
  CHECK(keys.at("support", 2).value == 40);
  CHECK(keys.at("support", 3).value == 3);
  CHECK(keys.at("entropy", 1).value == doctest::Approx(std::log(3)));
  const auto points = attnscale::jl_distortion({.n = 20, .dim = 50, .k = 400}, drawn(40));
  CHECK(misses(points.at("mean_ratio"), 1) < 4);
  CHECK(points.at("success").value == 1);
}

TEST_CASE("a run that goes on is the run that was never interrupted") {
  for (int kind = 0; kind < 5; ++kind) {
    CAPTURE(kind);
    const experiment_result whole = of_kind(kind, drawn(300)), part = of_kind(kind, drawn(130));
    CHECK(!same(whole, part));
    CHECK(same(of_kind(kind, {.samples = 300, .resume = part.state}), whole));
    run_options more_threads = drawn(300);
    more_threads.how.num_threads = 3;
    CHECK(same(of_kind(kind, more_threads), whole));
    CHECK(!same(of_kind(kind, {.samples = 300, .seed = 4}), whole));
  }
}

TEST_CASE("a target error ends a run at a multiple of 256 rows") {
  const auto found = of_kind(4, {.target_error = 0.01});
  CHECK(found.samples % 256 == 0);
  CHECK(found.standard_error() <= 0.01);
  CHECK(found.target_reached == true);
  CHECK(same(of_kind(4, {.target_error = 0.01, .resume = of_kind(4, {.samples = 100}).state}),
             found));
  const auto missed = of_kind(4, {.target_error = 1e-9, .max_samples = 300});
  CHECK(missed.samples == 300);
  CHECK(missed.target_reached == false);
  CHECK(!of_kind(4, drawn(10)).target_reached);
}

TEST_CASE("an interrupt leaves what was drawn before, and what it throws reaches the caller") {
  // Rows of a million keys: each is a separate piece of work.
  const auto draw = [](const run_options& how) {
    return attnscale::max_cosine({.n = 1 << 20, .head_dim = 512}, how);
  };
  int asked = 0;
  run_options how = drawn(3);
  how.how.context = &asked;
  how.how.interrupted = [](void* count) { return ++*static_cast<int*>(count) > 1; };
  const auto none = draw(how);
  CHECK(none.interrupted);
  CHECK(none.samples < 3);
  CHECK(same(draw({.samples = 3, .resume = none.state}), draw(drawn(3))));
  how.how.interrupted = [](void*) -> bool { throw std::runtime_error("mine"); };
  CHECK_THROWS_WITH(draw(how), "mine");
}

TEST_CASE("what cannot go on is refused by name") {
  const experiment_state before = of_kind(4, drawn(5)).state;
  CHECK_THROWS_WITH(of_kind(0, {.resume = before}),
                    "resume must be a result of dot_product_variance, got one of max_cosine");
  CHECK_THROWS_WITH(attnscale::max_cosine({.n = 21, .head_dim = 8}, {.resume = before}),
                    "resume must have the same n, got 21 here and 20 there");
  CHECK_THROWS_WITH(of_kind(4, {.seed = 3, .resume = before}),
                    "resume goes on with the seed of its result; seed must not be given, got 3");
  experiment_state other = before;
  other.rows = tally(2);
  CHECK_THROWS_WITH(of_kind(4, {.resume = other}),
                    "resume must have rows of 1 x 1 numbers, got 1 x 2");
  CHECK_THROWS_WITH(of_kind(4, drawn(5)).at("weight"),
                    "quantity must be one of 'max_cosine', got 'weight'");
  CHECK_THROWS_WITH(of_kind(4, drawn(5)).value(1), "entry must be below 1, got 1");
  CHECK_THROWS_AS(experiment_result().value(), std::invalid_argument);
}

TEST_CASE("options out of range are refused by name") {
  using attnscale::sparsity;
  namespace normalizers = attnscale::normalizers;
  CHECK_THROWS_WITH(attnscale::entropy_vs_length({}), "n must be at least 1, got 0");
  CHECK_THROWS_WITH(attnscale::needle_dilution({.n = 4}), "cosine must be finite, got nan");
  CHECK_THROWS_WITH(attnscale::entropy_vs_length({.n = 4, .law = {laws::critical_scale{}}}),
                    "law 'critical_scale' needs a measurement of each row: measure it, and give "
                    "scale an array");
  CHECK_THROWS_WITH(sparsity({.n = 4, .normalizer = {normalizers::sigmoid(0)}}),
                    "normalizer must give its rows support, entropy, concentration, max_weight; "
                    "sigmoid has no entropy");
  const xt::xarray<double> sinks = xt::zeros<double>({2});
  CHECK_THROWS_WITH(sparsity({.n = 4, .normalizer = {normalizers::sink(sinks)}}),
                    "the numbers of the normalizer must be one number, got 2");
  CHECK_THROWS_WITH(sparsity({.n = 1LL << 50, .head_dim = 1LL << 50, .model = {}}),
                    "n must be small enough for memory, got 1125899906842624 with rows of "
                    "1125899906842624 numbers");
  const std::vector<float> points{1, 2, 1, 2};
  CHECK_THROWS_WITH(attnscale::jl_distortion({.points = points.data(), .n = 2, .dim = 2, .k = 1}),
                    "points must be distinct in float32, once their mean is taken off, got two "
                    "equal ones, whose distance has no ratio");
  CHECK_THROWS_WITH(attnscale::jl_distortion({.n = 3, .dim = 2}), "k must be at least 1, got 0");
  const std::string nine = " must be an enumerator of its type, from 0 to ";
  CHECK_THROWS_WITH(
      attnscale::jl_distortion({.n = 3, .dim = 2, .k = 1, .kind = attnscale::projection_kind(9)}),
      ("kind" + nine + "2, got 9").c_str());
  CHECK_THROWS_WITH(attnscale::entropy_vs_length({.n = 4, .model = attnscale::score_model(9)}),
                    ("model" + nine + "2, got 9").c_str());
  CHECK_THROWS_WITH(sparsity({.n = 4, .model = attnscale::score_model(9)}),
                    ("model" + nine + "2, got 9").c_str());
  CHECK_THROWS_WITH(
      attnscale::dot_product_variance({.head_dim = 4, .components = attnscale::distribution(9)}),
      ("distribution" + nine + "3, got 9").c_str());
  CHECK_THROWS_WITH(of_kind(4, {.samples = 5, .how = {.num_threads = -7}}),
                    "num_threads must be at least 1, or 0 for the default, got -7");
}

TEST_CASE("components whose powers leave the range of numbers are refused, others have any unit") {
  const std::string rule =
      " must be between 1e-12 and 1e12: powers of products leave the range of floating point; got ";
  for (const double std : {1e30, 1e-30})
    CHECK_THROWS_WITH(attnscale::dot_product_variance({.head_dim = 4, .std = std}),
                      ("std" + rule + attnscale::detail::text_of(std)).c_str());
  CHECK_THROWS_WITH(attnscale::dot_product_variance({.head_dim = 4, .key_mean = -1e30}),
                    "mean must be between -1e12 and 1e12: powers of products leave the range of "
                    "floating point; got -1e+30");
  CHECK_THROWS_WITH(
      attnscale::dot_product_variance({.head_dim = 4, .query_mean = 1e8}),
      "mean must be at most 1e6 times std, so that float32 components keep digits; got 1e+08 "
      "with std 1");
  const auto one = attnscale::dot_product_variance({.head_dim = 4}, {.samples = 640});
  for (const double std : {1e12, 1e-12}) {
    const auto found =
        attnscale::dot_product_variance({.head_dim = 4, .std = std}, {.samples = 640});
    const double unit = std * std * std * std;
    CHECK(found.value() == doctest::Approx(one.value() * unit).epsilon(1e-5));
    CHECK(found.standard_error() == doctest::Approx(one.standard_error() * unit).epsilon(1e-5));
    CHECK(found.at("kurtosis").value == doctest::Approx(one.at("kurtosis").value).epsilon(1e-5));
  }
}

TEST_CASE("moments of products far from 0 are right or NaN") {
  for (const double mean : {0.0, 10.0, 1e2, 1e3, 1e4, 1e5, 1e6}) {
    const auto found = attnscale::dot_product_variance(
        {.head_dim = 64, .query_mean = mean, .key_mean = mean}, {.samples = 6400});
    const double truth = 64 * (1 + 2 * mean * mean);
    const double kurtosis = found.at("kurtosis").value, error = found.standard_error() / truth;
    CHECK((std::isnan(found.value()) || found.value() == doctest::Approx(truth).epsilon(0.1)));
    CHECK((std::isnan(kurtosis) || kurtosis == doctest::Approx(3).epsilon(0.1)));
    CHECK((std::isnan(error) || error == doctest::Approx(0.018).epsilon(0.1)));
    CHECK(std::isnan(kurtosis) == (mean > 100));
    CHECK(std::isnan(found.value()) == (mean > 1e4));
  }
}

TEST_CASE("the distortion of given points has no unit and no origin") {
  std::vector<float> points(30 * 50);
  attnscale::fill(points.data(), 30 * 50, {}, {7, 1});
  const auto measured = [&](float unit) {
    std::vector<float> scaled = points;
    for (float& x : scaled) x *= unit;
    return attnscale::jl_distortion({.points = scaled.data(), .n = 30, .dim = 50, .k = 20});
  };
  const auto found = measured(1);
  CHECK(found.value() > 0.5);
  CHECK(found.at("success").value == 0);
  for (const float unit : {1e20F, 1e-25F}) {
    CHECK(measured(unit).value() == doctest::Approx(found.value()).epsilon(1e-5));
    CHECK(measured(unit).at("success").value == 0);
  }
}

}  // namespace test_experiments
