// SPDX-License-Identifier: BSD-3-Clause
//
// What a program that includes the installed headers writes, compiled with warnings that the
// library itself is not compiled with, as errors.
#include <attnscale/attnscale.hpp>
//
#include <doctest/doctest.h>

#include <cmath>
#include <string>
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

/// The same of linear_attention.hpp.
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
  // clang-format off
  auto entropy = attnscale::attention_entropy(query, key, {.scale = attnscale::laws::log_n{.base = 512}});
  // clang-format on
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

TEST_CASE("integers are not cut from floating-point numbers") {
  static_assert(!std::is_convertible_v<double, number_or_array<std::int64_t>>);
  static_assert(!std::is_convertible_v<xt::xarray<double>, number_or_array<std::int64_t>>);
  static_assert(std::is_convertible_v<int, number_or_array<std::int64_t>>);
  static_assert(std::is_convertible_v<int, number_or_array<double>>);
  CHECK(number_or_array<std::int64_t>(2).values()() == 2);
}
