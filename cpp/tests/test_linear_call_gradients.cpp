// SPDX-License-Identifier: BSD-3-Clause
//
// The calls of linear_attention_gradients.hpp against central differences of the outputs; heads
// that share arrays; refusals.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "attnscale/linear_attention.hpp"
#include "central_differences.hpp"
#include "compare.hpp"
#include "linear_loops.hpp"

namespace test_linear_call_gradients {

using namespace attnscale;
using loops::difference;
using testing::differences;
using testing::identical;
using testing::normal;
using testing::refusal;

namespace {

using array = xt::xarray<double>;

constexpr double near = 1e-7;

/// Heads that share keys and a value, and a gradient that broadcasts.
struct shared_inputs {
  array query = normal<double>({2, 4, 6, 3}, 1), key = normal<double>({2, 7, 3}, 2),
        value = normal<double>({2, 1, 7, 2}, 3), grad = normal<double>({4, 6, 1}, 4);
  shared_inputs() = default;
  explicit shared_inputs(std::size_t n)
      : key(normal<double>({2, n, 3}, 2)), value(normal<double>({2, 1, n, 2}, 3)) {}
};

/// call(q, k, v) and gradients(q, k, v, g) of one family.
template <class Call, class Gradients>
void check_family(Call call, Gradients gradients, shared_inputs in = {}) {
  const auto loss = [&] {
    const array output = call(in.query, in.key, in.value);
    return xt::sum(in.grad * output)();
  };
  const auto found = gradients(in.query, in.key, in.value, in.grad);
  CHECK(difference(found.query, differences(in.query, loss)) < near);
  CHECK(difference(found.key, differences(in.key, loss)) < near);
  CHECK(difference(found.value, differences(in.value, loss)) < near);
  CHECK(found.key.shape() == in.key.shape());
  CHECK(found.value.shape() == in.value.shape());
}

const std::vector<causal_alignment> alignments{causal_alignment::none, causal_alignment::top_left,
                                               causal_alignment::bottom_right};

/// Checks a call and its gradients with the same options.
#define CHECK_FAMILY(name, ...)                                     \
  check_family([&](auto&... x) { return name(x..., __VA_ARGS__); }, \
               [&](auto&... x) { return name##_gradients(x..., __VA_ARGS__); })

}  // namespace

TEST_CASE("gradients of the attentions of linear time are the differences of their outputs") {
  for (const causal_alignment causal : alignments) {
    CAPTURE(static_cast<int>(causal));
    efficient_attention_options efficient{.scale = 0.7, .causal = causal, .enable_gqa = true};
    CHECK_FAMILY(efficient_attention, efficient);
    efficient.normalization = efficient_normalization::scaling;
    CHECK_FAMILY(efficient_attention, efficient);
    for (const auto map : {linear_feature_map::elu, linear_feature_map::relu}) {
      const linear_attention_options linear{
          .feature_map = map, .causal = causal, .enable_gqa = true};
      CHECK_FAMILY(linear_attention, linear);
    }
    const cosformer_attention_options cosformer{
        .max_length = 9, .causal = causal, .enable_gqa = true};
    CHECK_FAMILY(cosformer_attention, cosformer);
    performer_attention_options performer{.features = 6, .causal = causal, .enable_gqa = true};
    CHECK_FAMILY(performer_attention, performer);
  }
}

TEST_CASE("gradients of features that are given are those of the features") {
  shared_inputs in;
  in.query = xt::abs(in.query) + 0.1;
  in.key = xt::abs(in.key) + 0.1;
  const linear_attention_options options{
      .feature_map = linear_feature_map::given, .is_causal = true, .enable_gqa = true};
  check_family([&](auto&... x) { return linear_attention(x..., options); },
               [&](auto&... x) { return linear_attention_gradients(x..., options); }, in);
}

TEST_CASE("gradients of state-space duality reach its log-decays") {
  shared_inputs in(6);
  array decay = -0.1 - 0.3 * xt::abs(normal<double>({4, 6}, 5));
  const ssd_options options{.enable_gqa = true};
  check_family(
      [&](auto&... x) { return ssd(x..., decay, options); },
      [&](auto& q, auto& k, auto& v, auto& g) { return ssd_gradients(q, k, v, decay, g, options); },
      in);
  for (const std::vector<std::size_t>& shape :
       std::vector<std::vector<std::size_t>>{{4, 6}, {2, 4, 6}, {6}, {4, 1}, {}}) {
    CAPTURE(shape.size());
    array decays = xt::zeros<double>(shape);
    for (std::size_t i = 0; i < decays.size(); ++i) decays.flat(i) = -0.1 - 0.05 * double(i);
    const auto found = ssd_gradients(in.query, in.key, in.value, decays, in.grad, options);
    CHECK(found.log_decay.shape() == decays.shape());
    CHECK(difference(found.log_decay, differences(decays, [&] {
                       const array output = ssd(in.query, in.key, in.value, decays, options);
                       return xt::sum(in.grad * output)();
                     })) < near);
  }
}

TEST_CASE("gradients are of the arrays' type, from any layout, by any number of threads") {
  const auto q = normal<float>({2, 3000, 4}, 1), k = normal<float>({2, 3000, 4}, 2),
             v = normal<float>({2, 3000, 3}, 3), g = normal<float>({2, 3000, 3}, 4);
  const auto one = linear_attention_gradients(q, k, v, g, {.is_causal = true, .num_threads = 1});
  const auto three = linear_attention_gradients(q, k, v, g, {.is_causal = true, .num_threads = 3});
  static_assert(std::is_same_v<decltype(one.query), dense_array<float>>);
  CHECK(identical(one.query, three.query));
  CHECK(identical(one.key, three.key));
  CHECK(identical(one.value, three.value));
  const xt::xarray<float, xt::layout_type::column_major> q2 = q, g2 = g;
  const auto other = linear_attention_gradients(q2, k, v, g2, {.is_causal = true});
  CHECK(identical(one.query, other.query));
  CHECK(identical(one.value, other.value));
}

TEST_CASE("rows that see nothing, and keys that nobody sees, have gradient 0") {
  const array x = normal<double>({5, 3}, 1), one_key = xt::view(x, xt::range(0, 1));
  const auto found = linear_attention_gradients(
      x, x, x, x, {.causal = causal_alignment::offset, .causal_offset = -4});
  for (std::size_t c = 0; c < 3; ++c) {
    CHECK(found.query(0, c) == 0);
    CHECK(found.key(4, c) == 0);
    CHECK(found.value(4, c) == 0);
  }
  CHECK(found.value(0, 0) == doctest::Approx(x(4, 0)));
}

TEST_CASE("arrays without elements have gradients without elements, and leave the others theirs") {
  const array none = xt::zeros<double>({5, 0}), ones = xt::ones<double>({5, 2});
  const auto found = performer_attention_gradients(none, none, ones, ones);
  CHECK(found.query.size() == 0);
  CHECK(difference(found.value, ones) < 1e-12);
  const auto other = linear_attention_gradients(ones, ones, none, none);
  CHECK(other.value.size() == 0);
  CHECK(difference(other.key, array(xt::zeros<double>({5, 2}))) == 0);
  const array no_rows = xt::zeros<double>({0, 2});
  const auto unseen = linear_attention_gradients(no_rows, ones, ones, no_rows);
  CHECK(difference(unseen.value, array(xt::zeros<double>({5, 2}))) == 0);
}

TEST_CASE("gradients refuse what their calls refuse, and an output gradient that does not fit") {
  const array x = xt::ones<double>({2, 5, 4});
  const array grad = xt::ones<double>({5, 3});
  CHECK(refusal([&] { linear_attention_gradients(x, x, x, grad); }) ==
        "grad_output must broadcast to the output = (2, 5, 4), got shape (5, 3)");
  CHECK(refusal([&] { ssd_gradients(x, x, x, -1, grad); }) ==
        "grad_output must broadcast to the output = (2, 5, 4), got shape (5, 3)");
  CHECK(refusal([&] { ssd_gradients(x, x, x, 1, x); }) ==
        "log_decay must be finite and at most 0, got 1");
  CHECK(refusal([&] { cosformer_attention_gradients(x, x, x, x, {.max_length = 3}); }) ==
        "max_length must be at least the number of positions, 5, got 3");
  CHECK(refusal([&] { efficient_attention_gradients(x, x, x, x, {.scale = NAN}); }) ==
        "scale must be finite, got nan");
  CHECK(refusal([&] { performer_attention_gradients(x, x, x, x, {.scale = 0.0}); }) ==
        "scale must be positive, got 0");
}

}  // namespace test_linear_call_gradients
