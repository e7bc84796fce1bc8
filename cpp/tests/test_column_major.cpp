// SPDX-License-Identifier: BSD-3-Clause
//
// A separate program whose xtensor arrays are column-major, because the macro has to be the same in
// all files of a program. The oracle reads element by element, so it does not depend on the layout.
#define XTENSOR_DEFAULT_LAYOUT ::xt::layout_type::column_major
#include "attnscale/attnscale.hpp"
//
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

using attnscale::attention_options;

namespace {

using array = xt::xarray<double>;
static_assert(!std::is_same_v<array, attnscale::dense_array<double>>);

constexpr std::size_t heads = 2, queries = 3, keys = 5, dim = 4, value_dim = 2;

array normal(const std::vector<std::size_t>& shape, unsigned seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> distribution;
  array result = array::from_shape(shape);
  for (double& x : result) x = distribution(engine);
  return result;
}

const array query = normal({heads, queries, dim}, 1), key = normal({heads, keys, dim}, 2),
            value = normal({heads, keys, value_dim}, 3);

struct row {
  std::vector<double> weight;
  double lse = 0, entropy = 0;
};

/// Weights of a row at a scale; `seen` marks its visible keys.
template <class Seen>
row row_of(std::size_t h, std::size_t i, double scale, Seen seen) {
  row found{std::vector<double>(keys)};
  double sum = 0;
  for (std::size_t j = 0; j < keys; ++j) {
    double product = 0;
    for (std::size_t c = 0; c < dim; ++c) product += query(h, i, c) * key(h, j, c);
    sum += found.weight[j] = seen(j) ? std::exp(scale * product) : 0;
  }
  found.lse = std::log(sum);
  for (double& w : found.weight) {
    w /= sum;
    if (w > 0) found.entropy -= w * std::log(w);
  }
  return found;
}

row row_of(std::size_t h, std::size_t i, double scale = 0.5) {
  return row_of(h, i, scale, [](std::size_t) { return true; });
}

template <class Check>
void for_each_row(Check check) {
  for (std::size_t h = 0; h < heads; ++h)
    for (std::size_t i = 0; i < queries; ++i) check(h, i);
}

doctest::Approx near(double x) { return doctest::Approx(x).epsilon(1e-9); }

}  // namespace

TEST_CASE("outputs and statistics stand where they belong") {
  const auto output = attnscale::attention(query, key, value);
  const auto rows = attnscale::attention_statistics(query, key);
  const auto counts = attnscale::count_visible(query, key, {.is_causal = true});
  for_each_row([&](std::size_t h, std::size_t i) {
    const row wanted = row_of(h, i);
    for (std::size_t c = 0; c < value_dim; ++c) {
      double sum = 0;
      for (std::size_t j = 0; j < keys; ++j) sum += wanted.weight[j] * value(h, j, c);
      CHECK(output(h, i, c) == near(sum));
    }
    CHECK((*rows.lse)(h, i) == near(wanted.lse));
    CHECK((*rows.entropy)(h, i) == near(wanted.entropy));
    CHECK(counts(h, i) == static_cast<std::int64_t>(i) + 1);
  });
}

TEST_CASE("masks and scales of any layout belong to their rows") {
  xt::xarray<bool> mask = xt::zeros<bool>({heads, queries, keys});
  array scale = xt::zeros<double>({heads, queries});
  for_each_row([&](std::size_t h, std::size_t i) {
    for (std::size_t j = 0; j < keys; ++j) mask(h, i, j) = (h + 2 * i + j) % 3 != 0;
    scale(h, i) = 0.1 + static_cast<double>(h + 2 * i);
  });
  const auto entropy =
      attnscale::attention_entropy(query, key, {.scale = scale, .attn_mask = mask});
  for_each_row([&](std::size_t h, std::size_t i) {
    const row wanted =
        row_of(h, i, scale(h, i), [&](std::size_t j) { return (h + 2 * i + j) % 3 != 0; });
    CHECK(entropy(h, i) == near(wanted.entropy));
  });
}

TEST_CASE("curves, scales and merged states stand where they belong") {
  const auto curve = attnscale::entropy_curve(query, key, {0.25, 0.5});
  const auto solution = attnscale::solve_scale(query, key, 1.0);
  const auto part = [](std::size_t first, std::size_t last) {
    return attnscale::attention_state(query, xt::view(key, xt::all(), xt::range(first, last)),
                                      xt::view(value, xt::all(), xt::range(first, last)));
  };
  const auto merged = attnscale::merge_states(std::vector{part(0, 2), part(2, keys)});
  const auto entropy = merged.entropy();
  for_each_row([&](std::size_t h, std::size_t i) {
    CHECK(curve.entropy(h, i, 0) == near(row_of(h, i, 0.25).entropy));
    CHECK(curve.lse(h, i, 1) == near(row_of(h, i).lse));
    if (solution.converged(h, i))
      CHECK(std::abs(row_of(h, i, solution.scale(h, i)).entropy - 1) < 1e-6);
    CHECK(merged.lse(h, i) == near(row_of(h, i).lse));
    CHECK(entropy(h, i) == near(row_of(h, i).entropy));
  });
}

TEST_CASE("gradients stand where they belong") {
  const array grad_output = normal({heads, queries, value_dim}, 4);
  array of_lse = xt::zeros<double>({heads, queries});
  for_each_row(
      [&](std::size_t h, std::size_t i) { of_lse(h, i) = static_cast<double>(1 + h + 2 * i); });
  const array nothing = xt::zeros<double>({heads, queries, value_dim});
  const auto forward = attnscale::attention_statistics(query, key, value);
  const auto of_output =
      attnscale::attention_gradients(query, key, value, grad_output, {}, {}, &forward);
  const auto of_rows =
      attnscale::attention_gradients(query, key, value, nothing, {}, {.lse = of_lse});
  for (std::size_t h = 0; h < heads; ++h)
    for (std::size_t j = 0; j < keys; ++j)
      for (std::size_t c = 0; c < value_dim; ++c) {
        double sum = 0;
        for (std::size_t i = 0; i < queries; ++i)
          sum += row_of(h, i).weight[j] * grad_output(h, i, c);
        CHECK(of_output.value(h, j, c) == near(sum));
      }
  for_each_row([&](std::size_t h, std::size_t i) {
    for (std::size_t c = 0; c < dim; ++c) {
      double sum = 0;
      for (std::size_t j = 0; j < keys; ++j) sum += row_of(h, i).weight[j] * key(h, j, c);
      CHECK(of_rows.query(h, i, c) == near(0.5 * of_lse(h, i) * sum));
    }
  });
}

TEST_CASE("linear attention, its gradients and its states stand where they belong") {
  const auto phi = [](double x) { return x > 0 ? x + 1 : std::exp(x); };
  const auto output = attnscale::linear_attention(query, key, value);
  attnscale::linear_state state;
  state.update(key, value);
  const auto read = state.read(query);
  const array grad_output = normal({heads, queries, value_dim}, 4);
  const auto gradients = attnscale::linear_attention_gradients(query, key, value, grad_output);
  array of_value = xt::zeros<double>({heads, keys, value_dim});
  for_each_row([&](std::size_t h, std::size_t i) {
    std::vector<double> weight(keys);
    double sum = 0;
    for (std::size_t j = 0; j < keys; ++j) {
      for (std::size_t c = 0; c < dim; ++c) weight[j] += phi(query(h, i, c)) * phi(key(h, j, c));
      sum += weight[j];
    }
    for (std::size_t c = 0; c < value_dim; ++c) {
      double wanted = 0;
      for (std::size_t j = 0; j < keys; ++j) {
        wanted += weight[j] / sum * value(h, j, c);
        of_value(h, j, c) += weight[j] / sum * grad_output(h, i, c);
      }
      CHECK(output(h, i, c) == near(wanted));
      CHECK(read(h, i, c) == near(wanted));
    }
  });
  for (std::size_t h = 0; h < heads; ++h)
    for (std::size_t j = 0; j < keys; ++j)
      for (std::size_t c = 0; c < value_dim; ++c)
        CHECK(gradients.value(h, j, c) == near(of_value(h, j, c)));
}

TEST_CASE("directions and decays of any layout are those of their channels and rows") {
  const array directions = normal({6, dim}, 5);
  const xt::xarray<double, xt::layout_type::row_major> same = directions;
  const auto one = attnscale::performer_attention(query, key, value, {.projection = directions});
  const auto two = attnscale::performer_attention(query, key, value, {.projection = same});
  const auto pairs = [](const array& rows) {
    return xt::view(rows, xt::all(), xt::range(0, queries));
  };
  array decay = xt::zeros<double>({heads, queries});
  for_each_row([&](std::size_t h, std::size_t i) { decay(h, i) = -0.1 * double(h + 2 * i); });
  const auto faded = attnscale::ssd(query, pairs(key), pairs(value), decay);
  for_each_row([&](std::size_t h, std::size_t i) {
    for (std::size_t c = 0; c < value_dim; ++c) {
      CHECK(one(h, i, c) == near(two(h, i, c)));
      double wanted = 0;
      for (std::size_t j = 0; j <= i; ++j) {
        double left = 0, product = 0;
        for (std::size_t at = j + 1; at <= i; ++at) left += decay(h, at);
        for (std::size_t d = 0; d < dim; ++d) product += query(h, i, d) * key(h, j, d);
        wanted += std::exp(left) * product * value(h, j, c);
      }
      CHECK(faded(h, i, c) == near(wanted));
    }
  });
}

TEST_CASE("tables of the distance, normalised rows and weights that are written out") {
  array table = array::from_shape({heads, keys});
  for (std::size_t h = 0; h < heads; ++h)
    for (std::size_t t = 0; t < keys; ++t) table(h, t) = 0.1 * double(h + 1) * double(t);
  const attention_options options{
      .scale = 0.5, .distance_bias = table, .qk_norm = attnscale::row_norm::rms};
  const auto weights = attnscale::attention_weights(query, key, options);
  const auto gradients = attnscale::attention_gradients(query, key, options, {.lse = 1}, nullptr,
                                                        {.distance_bias = true});
  const auto length = [](const array& rows, std::size_t h, std::size_t i) {
    double sum = 0;
    for (std::size_t c = 0; c < dim; ++c) sum += rows(h, i, c) * rows(h, i, c);
    return std::sqrt(sum / dim);
  };
  array of_table = xt::zeros<double>({heads, keys});
  for_each_row([&](std::size_t h, std::size_t i) {
    std::vector<double> weight(keys);
    double sum = 0;
    for (std::size_t j = 0; j < keys; ++j) {
      double product = 0;
      for (std::size_t c = 0; c < dim; ++c) product += query(h, i, c) * key(h, j, c);
      product /= length(query, h, i) * length(key, h, j);
      sum += weight[j] = std::exp(0.5 * product + table(h, i > j ? i - j : j - i));
    }
    for (std::size_t j = 0; j < keys; ++j) {
      CHECK(weights(h, i, j) == near(weight[j] / sum));
      of_table(h, i > j ? i - j : j - i) += weight[j] / sum;
    }
  });
  for (std::size_t h = 0; h < heads; ++h)
    for (std::size_t t = 0; t < keys; ++t)
      CHECK((*gradients.distance_bias)(h, t) == near(of_table(h, t)));
}

TEST_CASE("perplexities of points, and of their squared distances") {
  const array points = normal({7, 2}, 8);
  array squared = xt::zeros<double>({7, 7});
  for (std::size_t i = 0; i < 7; ++i)
    for (std::size_t j = 0; j < 7; ++j)
      squared(i, j) =
          std::pow(points(i, 0) - points(j, 0), 2) + std::pow(points(i, 1) - points(j, 1), 2);
  const auto one = attnscale::solve_perplexity(points, 3.0);
  const auto two = attnscale::solve_perplexity_of_distances(squared, 3.0);
  for (std::size_t i = 0; i < 7; ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < 7; ++j)
      if (i != j) sum += std::exp(-one.beta(i) * squared(i, j));
    for (std::size_t j = 0; j < 7; ++j) {
      const double wanted = i == j ? 0 : std::exp(-one.beta(i) * squared(i, j)) / sum;
      CHECK(one.affinities(i, j) == near(wanted));
      CHECK(std::abs(two.affinities(i, j) - wanted) < 1e-7);
    }
  }
}
