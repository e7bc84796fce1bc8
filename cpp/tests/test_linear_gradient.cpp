// SPDX-License-Identifier: BSD-3-Clause
//
// Gradients of linear attention against differences of its own outputs, in double; float against
// double.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "attnscale/detail/linear_problem.hpp"
#include "compare.hpp"

namespace test_linear_gradient {

using attnscale::element_type;
using attnscale::execution;
using attnscale::matrix_layout;
using attnscale::detail::feature_map;
using attnscale::detail::linear_form;
using attnscale::detail::linear_gradient_problem;
using attnscale::detail::linear_norm;
using attnscale::detail::linear_problem;
using namespace testing;

namespace {

std::ptrdiff_t signed_size(std::size_t n) { return static_cast<std::ptrdiff_t>(n); }

template <class T>
matrix_layout layout_of(const xt::xarray<T>& array) {
  return {sizeof(T) == 4 ? element_type::float32 : element_type::float64,
          signed_size(array.shape(1)), 1};
}

struct kind {
  feature_map map;
  linear_norm norm;
};

constexpr kind kinds[] = {
    {feature_map::given, linear_norm::weights},        {feature_map::given, linear_norm::count},
    {feature_map::given, linear_norm::none},           {feature_map::elu, linear_norm::weights},
    {feature_map::relu, linear_norm::weights},         {feature_map::turned, linear_norm::weights},
    {feature_map::exponential, linear_norm::channels}, {feature_map::log_elu, linear_norm::weights},
    {feature_map::projected, linear_norm::weights}};

/// One head on its own arrays, query to grad, and its gradients.
template <class T>
struct gradient_case {
  xt::xarray<T> in[4], out[3];
  std::vector<double> decay, decay_out, turns, projection;
  linear_form form{};
  bool causal = false;
  std::int64_t offset = 0;

  gradient_case(std::size_t rows, std::size_t keys, std::size_t d, std::size_t dv, kind of)
      : in{normal<T>({rows, d}, 1), normal<T>({keys, d}, 2), normal<T>({keys, dv}, 3),
           normal<T>({rows, dv}, 4)},
        out{in[0], in[1], in[2]} {
    form.map = of.map;
    form.norm = of.norm;
    form.scale = of.map == feature_map::given || of.map == feature_map::exponential ? 0.8 : 1;
    form.head_dim = form.features = signed_size(d);
    form.value_dim = signed_size(dv);
    if (of.map == feature_map::given) in[0] = xt::abs(in[0]), in[1] = xt::abs(in[1]);
    if (of.map == feature_map::turned) form.features *= 2;
    if (of.map == feature_map::projected) {
      const auto w = normal<double>({d, 5}, 5);
      projection.assign(w.begin(), w.end());
      form.features = 5;
      form.norm_factor = 0.3;
    }
    for (std::size_t i = 0; i < std::max(rows, keys); ++i)
      for (const double x : {std::cos(0.003 * double(i)), std::sin(0.003 * double(i))})
        turns.push_back(x);
  }

  void fade() {
    for (std::size_t i = 0; i < in[0].shape(0); ++i) decay.push_back(-0.1 * double(i % 5));
    decay_out.resize(decay.size());
  }

  template <class P>
  void set_sizes(P& p) {
    form.projection = projection.data();
    p.form = form;
    p.query = layout_of(in[0]), p.key = layout_of(in[1]), p.value = layout_of(in[2]);
    p.n_queries = signed_size(in[0].shape(0)), p.n_keys = signed_size(in[1].shape(0));
    p.is_causal = causal, p.offset = offset;
    if (form.map == feature_map::turned) p.query_turn = p.key_turn = turns.data();
  }

  attnscale::detail::linear_inputs_of_head rows() const {
    return {in[0].data(), in[1].data(), in[2].data(), decay.empty() ? nullptr : decay.data()};
  }

  void run(const execution& how = {1, nullptr, nullptr}) {
    linear_gradient_problem p{};
    set_sizes(p);
    p.grad = layout_of(in[3]);
    p.query_out = p.query, p.key_out = p.key, p.value_out = p.value;
    p.heads = {{rows(), in[3].data(), out[0].data(), out[1].data(), out[2].data(),
                decay.empty() ? nullptr : decay_out.data()}};
    attnscale::detail::run(p, how);
  }

  /// sum(grad * output).
  double loss() {
    linear_problem p{};
    set_sizes(p);
    xt::xarray<T> y = in[3];
    p.output = layout_of(y);
    p.heads = {{rows(), y.data(), {}}};
    attnscale::detail::run(p, execution{1, nullptr, nullptr});
    return xt::sum(in[3] * y)();
  }

  /// Compares the change of the loss along random directions with the gradients.
  void check_differences() {
    for (std::size_t which = 0; which < 3; ++which) {
      CAPTURE(which);
      const xt::xarray<T> before = in[which];
      const xt::xarray<T> way = normal<T>({before.shape(0), before.shape(1)}, 7);
      const double expected = xt::sum(way * out[which])();
      const double size = xt::sum(xt::abs(way * out[which]))();
      constexpr double step = 1e-6;
      in[which] = before + step * way;
      const double up = loss();
      in[which] = before - step * way;
      const double down = loss();
      in[which] = before;
      CHECK(std::abs((up - down) / (2 * step) - expected) <= 1e-5 * size + 1e-7);
    }
  }
};

/// Sizes around lanes and blocks; every alignment that a form has.
template <class F>
void for_cases(F&& check) {
  for (const kind of : kinds)
    for (const std::size_t rows : {1, 63, 65, 130})
      for (const std::size_t width : {1, 5, 16, 33})
        for (const std::int64_t offset : {-100, 0, 20, -30}) {
          const bool fades = of.norm == linear_norm::none;
          if (fades && offset != 0) continue;
          CAPTURE(static_cast<int>(of.map));
          CAPTURE(static_cast<int>(of.norm));
          CAPTURE(rows);
          CAPTURE(width);
          CAPTURE(offset);
          check(rows, fades ? rows : 77, width, of, offset);
        }
}

template <class T>
gradient_case<T> make(std::size_t rows, std::size_t keys, std::size_t width, kind of,
                      std::int64_t offset) {
  gradient_case<T> one(rows, keys, width, 34 - width, of);
  one.causal = offset != -100, one.offset = offset;
  if (of.norm == linear_norm::none) one.fade();
  one.run();
  return one;
}

}  // namespace

TEST_CASE("linear gradients: changes of the output, for every form") {
  for_cases(
      [](std::size_t rows, std::size_t keys, std::size_t width, kind of, std::int64_t offset) {
        if (of.map == feature_map::relu || of.map == feature_map::turned) return;  // kinks
        make<double>(rows, keys, width, of, offset).check_differences();
      });
}

TEST_CASE("linear gradients: float is near double") {
  for_cases(
      [](std::size_t rows, std::size_t keys, std::size_t width, kind of, std::int64_t offset) {
        const auto one = make<float>(rows, keys, width, of, offset);
        const auto two = make<double>(rows, keys, width, of, offset);
        for (std::size_t which = 0; which < 3; ++which) {
          CAPTURE(which);
          double largest = 1;
          for (const double x : two.out[which]) largest = std::max(largest, std::abs(x));
          for (std::size_t i = 0; i < one.out[which].size(); ++i)
            CHECK(std::abs(one.out[which].flat(i) - two.out[which].flat(i)) <= 1e-3 * largest);
        }
      });
}

TEST_CASE("linear gradients: the same bits for any number of threads") {
  for_both_types([](auto zero) {
    using T = decltype(zero);
    for (const kind of : kinds) {
      gradient_case<T> one(2500, 2500, 5, 3, of);
      one.causal = true;
      if (of.norm == linear_norm::none) one.fade();
      one.run();
      const auto alone = one;
      for (const int threads : {2, 3, 7}) {
        for (auto& each : one.out) each.fill(T(0));
        one.run({threads, nullptr, nullptr});
        for (std::size_t which = 0; which < 3; ++which)
          CHECK(identical(one.out[which], alone.out[which]));
        CHECK(one.decay_out == alone.decay_out);
      }
    }
  });
}

TEST_CASE("linear gradients: an interrupt ends the call") {
  CHECK(ends_when_interrupted([](std::size_t rows, const execution& how) {
    gradient_case<float>(rows, rows, 8, 8, kinds[3]).run(how);
  }));
}

}  // namespace test_linear_gradient
