// SPDX-License-Identifier: BSD-3-Clause
//
// A program that uses the installed headers, compiled with warnings, as errors, that the library
// itself is not compiled with.
#include <attnscale/attnscale.hpp>
//
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

using namespace attnscale;

namespace {

/// Every call of the headers, with options that leave most members out.
template <class T>
void call_all() {
  const xt::xarray<T> x = xt::ones<T>({2, 3, 4});
  const xt::xtensor<float, 3> narrow = xt::ones<float>({2, 3, 4});
  const xt::xarray<bool> mask = xt::ones<bool>({3, 3});
  const attention_options options{.scale = 0.5, .attn_mask = mask, .key_lengths = 3};
  const auto rows = attention_statistics(x, x, x, options, all_statistics);
  CHECK(attention(x, x, x, {.window = {.left = 1}, .softcap = 2}).shape() == x.shape());
  CHECK(attention_entropy(x, narrow, {.is_causal = true})(0, 0) == 0);
  CHECK(entropy_curve(x, x, {0.5}).entropy.size() == 6);
  CHECK(entropy_curve(x, x, xt::xtensor<double, 1>{0.5, 1}).lse.size() == 12);
  CHECK(count_visible(x, x, {.causal = causal_alignment::bottom_right})(1, 1) == 2);
  CHECK(merge_states(std::vector{attention_state(x, x, x), attention_state(x, x, x)}).lse.size() ==
        6);
  CHECK(solve_scale(x, x, 1.0).scale.size() == 6);
  const auto gradients = attention_gradients(x, x, x, x, options, {.entropy = 1}, &rows);
  CHECK(gradients.query.shape() == x.shape());
  CHECK(attention_gradients(x, x, {}, {.lse = 1}).key.shape() == x.shape());
  CHECK(attention_weights(x, x, {.document_ids = 1, .qk_norm = row_norm::l2}).size() == 18);
  CHECK(solve_scale(x, x, 1.0, scale_per::head).scale.size() == 2);
  const xt::xarray<T> points{{0, 0}, {1, 0}, {0, 2}};
  CHECK(solve_perplexity(points, 1.5).beta.size() == 3);
  CHECK(solve_perplexity_of_distances(points, 1.5).affinities.size() == 6);
  for (const normalizer_choice& each :
       {normalizers::softmax_n(1), normalizers::sigmoid(0), normalizers::relu(0.5),
        normalizers::softpick(), normalizers::sparsemax(), normalizers::top_k(2)})
    CHECK(attention(x, x, x, {.normalizer = each}).shape() == x.shape());
}

/// Every call of linear_attention.hpp.
template <class T>
void call_linear() {
  const xt::xarray<T> x = xt::ones<T>({2, 3, 4});
  const xt::xarray<double> decay = -xt::ones<double>({3});
  CHECK(efficient_attention(x, x, x, {.is_causal = true}).shape() == x.shape());
  CHECK(linear_attention(x, x, x, {.feature_map = linear_feature_map::given}).size() == 24);
  CHECK(cosformer_attention(x, x, x, {.max_length = 3}).size() == 24);
  CHECK(performer_attention(x, x, x, {.features = 5, .scale = 0.5}).size() == 24);
  CHECK(ssd(x, x, x, decay, {.num_threads = 1}).size() == 24);
  CHECK(efficient_attention_gradients(x, x, x, x).key.shape() == x.shape());
  CHECK(linear_attention_gradients(x, x, x, x).key.shape() == x.shape());
  CHECK(cosformer_attention_gradients(x, x, x, x, {.max_length = 3}).value.size() == 24);
  CHECK(performer_attention_gradients(x, x, x, x, {.from = {.key = 1}}).value.size() == 24);
  CHECK(ssd_gradients(x, x, x, decay, x).log_decay.size() == 3);
  CHECK(efficient_state({.scale = 2}).update(x, x).read(x).size() == 24);
  linear_state state;
  CHECK(state.extend(x, x, x).size() == 24);
  CHECK(state.merge(state).n_keys() == 6);
  CHECK(cosformer_state({.max_length = 3}).update(x, x).n_keys() == 3);
  CHECK(performer_state({.features = 5}).update(x, x).n_keys() == 3);
  ssd_state faded;
  CHECK(faded.extend(x, x, x, decay).size() == 24);
  CHECK(faded.update(x, x, -0.5).read(x).size() == 24);
}

}  // namespace

TEST_CASE("calls compile without a warning") {
  call_all<float>();
  call_all<double>();
  call_linear<float>();
  call_linear<double>();
}

TEST_CASE("the program of the documentation's page") {
  const xt::xarray<float> query = xt::ones<float>({2, 5, 4}), key = query, value = query;
  auto output = attnscale::attention(query, key, value, {.scale = 0.125, .is_causal = true});
  auto entropy = attnscale::attention_entropy(query, key, {.scale = attnscale::laws::log_n{}});
  const xt::xarray<float> by_token = xt::ones<float>({5, 2, 4});
  auto packed = attnscale::attention(query, key, xt::transpose(by_token, {1, 0, 2}));
  CHECK(packed == output);
  CHECK(output(1, 4, 3) == doctest::Approx(1));
  CHECK(entropy(1, 4) == doctest::Approx(std::log(5.0)));
}

TEST_CASE("problems compile without a warning where members are left out") {
  std::vector<double> numbers(4);
  fill(numbers.data(), 4, {.kind = distribution::uniform}, {.key = 7});
  std::vector<score_row> rows(2);
  run(score_rows_problem{.model = score_model::gaussian, .n = 3, .multipliers = {1}, .count = 2},
      rows.data());
  power_sums sums{};
  run(dot_products_problem{.head_dim = 4, .block = 2, .count = 2}, &sums);
  std::vector<float> points{1, 2, 3, 4}, projected(2);
  project(projected.data(), 1, points.data(), 2, 2, {.kind = projection_kind::sign});
  const distance_ratios found = compare_distances(points.data(), 2, projected.data(), 1, 2, {0.5});
  CHECK(found.outside.size() == 1);
  const double scale = 1;
  const attention_head head{.query = points.data(), .key = points.data(), .scale = &scale};
  const attention_problem problem{{.n_queries = 2,
                                   .n_keys = 2,
                                   .head_dim = 2,
                                   .query = {.row = 2},
                                   .key = {.row = 2},
                                   .heads = {head}}};
  run(problem);
}

TEST_CASE("experiments compile without a warning where members are left out") {
  CHECK(entropy_vs_length({.n = 3, .law = {0.5, laws::log_n{}}}, {.samples = 2}).samples == 2);
  CHECK(sparsity({.n = 3, .normalizer = {normalizers::entmax(1.5)}}, {.samples = 2}).value() > 0);
  CHECK(max_cosine({.n = 3}, {.target_error = 1}).target_reached == true);
  CHECK(tally(2).rows() == 0);
}

TEST_CASE("the version can be read and compared") {
  const auto part = [](int number) { return std::to_string(number); };
  CHECK(part(ATTNSCALE_VERSION_MAJOR) + "." + part(ATTNSCALE_VERSION_MINOR) + "." +
            part(ATTNSCALE_VERSION_PATCH) ==
        ATTNSCALE_VERSION);
#if ATTNSCALE_VERSION_NUMBER < 1000
  FAIL("older than 0.1.0");
#endif
}

TEST_CASE("raw calls and experiments have a namespace each") {
  std::vector<double> cosines(3);
  random::max_cosine(cosines.data(), 3, 4, 8, {.key = 7});
  CHECK(montecarlo::max_cosine({.n = 4, .head_dim = 8}, {.samples = 3}).samples == 3);
  CHECK(montecarlo::jl_distortion({.n = 3, .dim = 2, .k = 2}, {.samples = 2}).samples == 2);
  random::fill(cosines.data(), 3, {}, {.key = 7});
  CHECK(cosines[0] != 0);
}

TEST_CASE("integers are not cut from floating-point numbers") {
  static_assert(!std::is_convertible_v<double, number_or_array<std::int64_t>>);
  static_assert(!std::is_convertible_v<bool, number_or_array<std::int64_t>>);
  static_assert(!std::is_convertible_v<xt::xarray<bool>, number_or_array<std::int64_t>>);
  static_assert(!std::is_convertible_v<bool, scale_option>);
  static_assert(!std::is_convertible_v<bool, law_or_scale>);
  static_assert(!std::is_convertible_v<xt::xarray<double>, number_or_array<std::int64_t>>);
  static_assert(std::is_convertible_v<int, number_or_array<std::int64_t>>);
  static_assert(std::is_convertible_v<int, number_or_array<double>>);
  CHECK(number_or_array<std::int64_t>(2).values()() == 2);
}

// Examples of the documentation pages, one per header. A header with a program in cpp/examples has
// that program instead.

TEST_CASE("example of linear_attention_gradients.hpp") {
  const xt::xarray<double> q = xt::ones<double>({2, 5, 4}), k = q, v = q, grad_output = q;
  const auto of = attnscale::linear_attention_gradients(q, k, v, grad_output, {.is_causal = true});
  CHECK(of.query.shape() == q.shape());
  CHECK(std::abs(xt::sum(of.value)() - 40) < 1e-12);  // weights of a row add up to 1
}

TEST_CASE("example of linear_state.hpp") {
  const xt::xarray<float> q = xt::ones<float>({2, 5, 4}), k = q, v = q;
  attnscale::linear_state state;
  const auto first = state.extend(q, k, v);  // five causal rows, whose keys are added
  const auto next = state.extend(q, k, v);   // the next five, which see up to ten keys
  CHECK(state.n_keys() == 10);
  CHECK(next.shape() == first.shape());
}

TEST_CASE("example of linear_options.hpp") {
  const xt::xarray<float> q = xt::ones<float>({2, 5, 4});
  const attnscale::linear_attention_options options{
      .feature_map = attnscale::linear_feature_map::relu, .is_causal = true};
  CHECK(attnscale::linear_attention(q, q, q, options)(1, 4, 3) == 1);
}

TEST_CASE("example of performer_projection.hpp") {
  const auto directions = attnscale::performer_projection(8, 4, {.from = {.key = 7}});
  double product = 0;  // the first two rows are orthogonal
  for (std::size_t c = 0; c < 4; ++c) product += directions(0, c) * directions(1, c);
  CHECK(std::abs(product) < 1e-12);
}

TEST_CASE("example of solve_scale.hpp") {
  const xt::xtensor<double, 2> query{{1, 0}}, key{{2, 0}, {1, 0}, {0, 0}};
  const auto found = attnscale::solve_scale(query, key, std::log(2.0));  // two effective keys
  CHECK(found.converged(0));
  const auto entropy = attnscale::attention_entropy(query, key, {.scale = found.scale(0)});
  CHECK(std::abs(entropy(0) - std::log(2.0)) < 1e-8);
}

TEST_CASE("example of merge_states.hpp") {
  const xt::xtensor<double, 2> query{{1, 0}}, key{{2, 0}, {1, 0}}, value{{1}, {3}};
  const auto part = [&](int i) {
    return attnscale::attention_state(query, xt::view(key, xt::range(i, i + 1)),
                                      xt::view(value, xt::range(i, i + 1)));
  };
  const auto both = attnscale::merge_states(std::vector{part(0), part(1)});
  CHECK(std::abs(both.output(0, 0) - attnscale::attention(query, key, value)(0, 0)) < 1e-12);
}

TEST_CASE("example of options.hpp") {
  const xt::xarray<float> q = xt::ones<float>({2, 5, 4});
  const attnscale::attention_options options{
      .scale = attnscale::laws::log_n{}, .is_causal = true, .window = {.left = 1}, .softcap = 30};
  const auto seen = attnscale::count_visible(q, q, options);
  CHECK(seen(1, 0) == 1);  // the query's own key
  CHECK(seen(1, 4) == 2);  // and the one to the left of it
}

TEST_CASE("example of normalizer.hpp") {
  const xt::xtensor<double, 2> query{{1}}, key{{4}, {0}}, value{{1}, {0}};
  const auto weight = [&](const attnscale::normalizer_choice& normalizer) {
    return attnscale::attention(query, key, value, {.scale = 1, .normalizer = normalizer})(0, 0);
  };
  CHECK(weight(attnscale::normalizers::sparsemax()) == 1);
  CHECK(weight(attnscale::normalizers::softmax()) < 1);
  CHECK(weight(attnscale::normalizers::softmax_n(1)) < weight(attnscale::normalizers::softmax()));
}

TEST_CASE("example of number_or_array.hpp") {
  const xt::xtensor<float, 2> q = xt::ones<float>({3, 4});
  const xt::xtensor<double, 1> by_row{0.1, 0.2, 0.3};
  CHECK(attnscale::attention_entropy(q, q, {.scale = 0.5}).size() == 3);
  CHECK(attnscale::attention_entropy(q, q, {.scale = by_row}).size() == 3);
}

TEST_CASE("example of normalizer_traits.hpp") {
  const auto rule = attnscale::normalizer_named("top_k");
  CHECK(attnscale::has_statistic(rule, true, attnscale::statistic::entropy));
  CHECK(!attnscale::traits_of(rule).is_exponential);
}

TEST_CASE("example of dense_array.hpp") {
  const attnscale::dense_array<float> q = xt::ones<float>({3, 4});
  const attnscale::dense_array<float> output = attnscale::attention(q, q, q);
  CHECK(output.data() + 4 == &output(1, 0));  // row-major, without gaps
}

TEST_CASE("example of results.hpp") {
  const xt::xtensor<float, 2> q = xt::ones<float>({3, 4});
  using attnscale::statistic;
  const auto rows = attnscale::attention_statistics(q, q, {}, {statistic::argmax, statistic::lse});
  CHECK((*rows.argmax)(2) == 0);
  CHECK(!rows.output.has_value());   // no value was given
  CHECK(!rows.entropy.has_value());  // not requested
}

TEST_CASE("example of statistic.hpp") {
  const attnscale::statistic_set wanted{attnscale::statistic::entropy,
                                        attnscale::statistic_named("max_weight")};
  CHECK(wanted.contains(attnscale::statistic::max_weight));
  CHECK(attnscale::name_of(attnscale::statistic::entropy) == "entropy");
}

TEST_CASE("example of problem.hpp") {
  const std::vector<float> rows{1, 2, 3, 4};  // two rows of two channels: query, key and value
  std::vector<float> output(4);
  const double scale = 0.5;
  attnscale::attention_problem problem;
  problem.n_queries = problem.n_keys = problem.head_dim = problem.value_dim = 2;
  problem.query = problem.key = problem.value = problem.output = {.row = 2};
  problem.heads.push_back({.query = rows.data(),
                           .key = rows.data(),
                           .value = rows.data(),
                           .output = output.data(),
                           .scale = &scale});
  attnscale::run(problem);
  CHECK(std::abs(output[1] - output[0] - 1) < 1e-5f);  // as in every row of value
}

TEST_CASE("example of types.hpp") {
  std::vector<double> first(4), other(4);
  attnscale::fill(first.data(), 4, {.kind = attnscale::distribution::laplace}, {.key = 7});
  attnscale::fill(other.data(), 4, {.kind = attnscale::distribution::laplace}, {.key = 8});
  CHECK(first != other);
}

TEST_CASE("example of simd_level.hpp") {
  const std::string_view before = attnscale::simd_level();
  attnscale::set_simd_level(attnscale::available_simd_levels().front());  // the baseline
  CHECK(attnscale::simd_level() == attnscale::available_simd_levels().front());
  attnscale::set_simd_level(before);
}

TEST_CASE("example of threads.hpp") {
  const int before = attnscale::num_threads();
  attnscale::set_num_threads(1);
  CHECK(attnscale::num_threads() == 1);
  attnscale::set_num_threads(before);
}

TEST_CASE("example of scale_law.hpp") {
  const attnscale::scale_law law = attnscale::laws::log_n{.base = 1024};
  CHECK(law.spelling() == "log_n(base=1024)");
  CHECK(std::abs(law.scale(1024, 64) - 0.125) < 1e-15);
  std::vector<double> lengths{1, 32, 1024}, multipliers(3);
  law.multipliers(lengths, 64, multipliers);
  CHECK(std::abs(multipliers[1] - 0.5) < 1e-15);
}

TEST_CASE("example of montecarlo.hpp") {
  const attnscale::score_rows_problem problem{
      .n = 1000, .head_dim = 64, .multipliers = {0.5, 1}, .from = {.key = 7}, .count = 10};
  std::vector<attnscale::score_row> rows(20);
  attnscale::run(problem, rows.data());
  CHECK(rows[0].entropy > rows[1].entropy);  // one row at two multipliers
}

TEST_CASE("example of tally.hpp") {
  const std::vector<double> first{1, 10, 2, 20}, others{3, 30};  // rows of two columns
  attnscale::tally rows(2);
  rows.add(first.data(), 2);
  rows.add(others.data(), 1);
  CHECK(rows.mean() == std::vector<double>{2, 20});
  CHECK(std::abs(rows.standard_error()[0] - std::sqrt(1.0 / 3)) < 1e-15);
}

TEST_CASE("example of version.hpp") {
  static_assert(ATTNSCALE_VERSION_NUMBER >= 1000);  // 0.1.0 or later
  CHECK(std::string(ATTNSCALE_VERSION).size() >= 5);
}

TEST_CASE("example of attention_weights.hpp") {
  const xt::xtensor<double, 2> q{{1, 0}, {0, 1}};
  const auto weights = attnscale::attention_weights(q, q, {.is_causal = true});
  CHECK(weights(0, 1) == 0);  // the first query does not see the second key
  CHECK(std::abs(weights(1, 0) + weights(1, 1) - 1) < 1e-15);
}

TEST_CASE("example of solve_perplexity.hpp") {
  const xt::xtensor<double, 2> points{{0, 0}, {1, 0}, {0, 2}, {3, 3}};
  const auto found = attnscale::solve_perplexity(points, 2);
  CHECK(found.affinities(0, 1) > found.affinities(0, 3));  // the nearer neighbour has more weight
  CHECK(std::abs(found.perplexity(0) - 2) < 1e-6);
}

TEST_CASE("example of attention_into.hpp") {
  const xt::xtensor<float, 3> q = xt::ones<float>({2, 3, 4});
  std::vector<float> memory(24), entropy(6);
  auto output = xt::adapt(memory, {2, 3, 4});
  auto rows = xt::adapt(entropy, {2, 3});
  attnscale::attention_into(q, q, q, {.output = output, .entropy = rows}, {.is_causal = true});
  CHECK(memory[23] == 1);
  CHECK(entropy[0] == 0);  // the first row sees one key
}

TEST_CASE("example of distance_table.hpp") {
  const xt::xtensor<double, 2> q = xt::zeros<double>({3, 4});
  const auto slope = [](const attnscale::distance_table::distances& steps) {
    return xt::xarray<double>(-0.5 * xt::abs(steps));  // ALiBi with the slope 1/2
  };
  const auto weights = attnscale::attention_weights(q, q, {.distance_bias = slope});
  CHECK(std::abs(weights(2, 1) / weights(2, 2) - std::exp(-0.5)) < 1e-12);
}

TEST_CASE("example of float16.hpp") {
  const attnscale::bfloat16 third(1.0f / 3);  // 8 significant bits
  CHECK(float(third) == 0.333984375f);
  const xt::xtensor<attnscale::bfloat16, 2> q({3, 4}, third);
  const xt::xtensor<attnscale::bfloat16, 2> output = attnscale::attention(q, q, q);
  CHECK(float(output(2, 3)) == float(third));
}

TEST_CASE("example of linformer_attention.hpp") {
  const xt::xtensor<float, 2> q = xt::ones<float>({6, 4});
  const xt::xtensor<float, 2> projection({2, 6}, 1.0f / 6);  // two means of all keys and values
  const auto output = attnscale::linformer_attention(q, q, q, projection);
  CHECK(std::abs(output(5, 3) - 1) < 1e-6f);
}

TEST_CASE("example of local_global_attention.hpp") {
  const xt::xtensor<float, 2> q = xt::ones<float>({9, 4}), k = q, v = q;
  const auto output = attnscale::local_global_attention(q, k, v, {.radius = 2, .global_tokens = 1});
  CHECK(std::abs(output(8, 0) - 1) < 1e-6f);
}

TEST_CASE("example of differential_attention.hpp") {
  const xt::xtensor<double, 2> q = xt::ones<double>({3, 4}), k = q, v = q;
  const auto output = attnscale::differential_attention(q, k, q, k, v, 0.25);
  CHECK(std::abs(output(2, 3) - 0.75) < 1e-12);  // two equal maps leave 1 - 1/4
}

TEST_CASE("example of relay_attention.hpp") {
  const xt::xtensor<double, 2> x{{1, 0}, {0, 1}, {1, 1}}, centres{{0, 0}};
  const auto nodes = attnscale::relay_attention(x, centres);
  CHECK(std::abs(nodes.output(0, 0) - 2.0 / 3) < 1e-12);  // the mean of the sequence
  CHECK(std::abs(nodes.entropy()(0) - std::log(3.0)) < 1e-12);
}

TEST_CASE("example of relay_energy.hpp") {
  const xt::xtensor<double, 2> nodes{{1, 2}, {3, 4}}, weight{{0, 1}, {1, 0}};
  CHECK(attnscale::relay_energy(nodes, weight)() == 22);  // twice their product
  CHECK(attnscale::relay_energy_gradient(nodes, weight)(0, 1) == 8);
}

TEST_CASE("example of kattention.hpp") {
  const xt::xtensor<double, 2> q{{0, 0}}, k{{0, 1}, {3, 0}}, v{{1}, {0}};
  const auto near = attnscale::kattention_heads(q, k, v, {.scale = 1});
  CHECK(std::abs(near(0, 0) - 1 / (1 + std::exp(-4.0))) < 1e-12);  // |q - k|^2 / 2 is 1/2 and 9/2
}

TEST_CASE("example of score_functions.hpp") {
  const xt::xtensor<double, 2> x{{1, 2}}, y{{3, 1}}, identity{{1, 0}, {0, 1}};
  CHECK(attnscale::score_functions::f1(x, y, identity, identity)(0, 0) == 5);
  CHECK(attnscale::score_functions::f3(x, y, identity, identity)(0, 0) == 0);  // less |y|^2 / 2
}
