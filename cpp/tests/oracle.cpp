// SPDX-License-Identifier: BSD-3-Clause
#include "oracle.hpp"

namespace oracle {

setting::setting(std::size_t n_queries, std::size_t n_keys, double one_scale)
    : scale(xt::ones<double>({n_queries}) * one_scale),
      visible(xt::ones<bool>({n_queries, n_keys})),
      bias(xt::zeros<double>({n_queries, n_keys})) {}

matrix product_transposed(const matrix& a, const matrix& b) {
  matrix result = xt::zeros<double>({a.shape(0), b.shape(0)});
  for (std::size_t i = 0; i < a.shape(0); ++i)
    for (std::size_t j = 0; j < b.shape(0); ++j) {
      double sum = 0;
      for (std::size_t c = 0; c < a.shape(1); ++c) sum += a(i, c) * b(j, c);
      result(i, j) = sum;
    }
  return result;
}

matrix product(const matrix& a, const matrix& b) {
  matrix result = xt::zeros<double>({a.shape(0), b.shape(1)});
  for (std::size_t i = 0; i < a.shape(0); ++i)
    for (std::size_t j = 0; j < b.shape(0); ++j)
      for (std::size_t c = 0; a(i, j) != 0 && c < b.shape(1); ++c)
        result(i, c) += a(i, j) * b(j, c);
  return result;
}

// amax starts from the lowest finite number.
column row_max(const matrix& x, double empty) {
  const column top = xt::amax(x, {1});
  return xt::where(xt::equal(top, std::numeric_limits<double>::lowest()), empty, top);
}

matrix scores(const matrix& raw, const setting& s) {
  matrix result = raw * as_column(s.scale);
  if (s.softcap > 0) result = s.softcap * xt::tanh(result / s.softcap);
  return result + s.bias;
}

/// First key with the largest visible score; -1 without visible keys.
static xt::xtensor<std::int64_t, 1> first_top(const matrix& shown, const column& top) {
  xt::xtensor<std::int64_t, 1> result = -xt::ones<std::int64_t>({shown.shape(0)});
  for (std::size_t i = 0; i < shown.shape(0); ++i)
    for (std::size_t j = 0; result(i) < 0 && j < shown.shape(1); ++j)
      if (shown(i, j) == top(i) && top(i) != -infinity) result(i) = static_cast<std::int64_t>(j);
  return result;
}

expected softmax(const matrix& raw, const setting& s) {
  expected e;
  e.raw = raw;
  const matrix score = scores(raw, s);
  const matrix shown = xt::where(s.visible, score, -infinity);
  e.max_score = row_max(shown, -infinity);
  const column top = xt::where(xt::equal(e.max_score, -infinity), 0.0, e.max_score);
  const matrix weight = xt::where(s.visible, xt::exp(shown - as_column(top)), 0.0);
  const column total = xt::sum(weight, {1});
  const column divisor = xt::where(xt::equal(total, 0.0), 1.0, total);
  e.weights = weight / as_column(divisor);
  e.lse = xt::log(total) + top;
  e.entropy = xt::sum(xt::where(e.weights > 0, -e.weights * xt::log(e.weights), 0.0), {1});
  e.mean_score = xt::sum(xt::where(s.visible, e.weights * score, 0.0), {1});
  const matrix centred = xt::where(s.visible, score - as_column(e.mean_score), 0.0);
  e.score_variance = xt::sum(e.weights * centred * centred, {1});
  const matrix below = xt::where(s.visible, score - as_column(top), 0.0);
  e.spread = xt::sum(e.weights * below * below, {1});
  e.concentration = xt::sum(e.weights * e.weights, {1});
  e.renyi2 = -xt::log(xt::where(xt::equal(e.concentration, 0.0), 1.0, e.concentration));
  e.min_score = -row_max(xt::where(s.visible, -score, -infinity), -infinity);
  e.max_weight = row_max(e.weights, 0);
  e.n_visible = xt::sum(xt::cast<std::int64_t>(s.visible), {1});
  e.argmax = first_top(shown, e.max_score);
  return e;
}

expected attention(const matrix& query, const matrix& key, const matrix& value, const setting& s) {
  expected e = softmax(product_transposed(query, key), s);
  const matrix magnitude = product_transposed(xt::abs(query), xt::abs(key));
  const matrix size = magnitude * as_column(xt::abs(s.scale)) + xt::abs(s.bias);
  e.magnitude = row_max(xt::where(s.visible, size, 0.0), 0);
  e.output = product(e.weights, value);
  e.absolute_output = product(e.weights, xt::abs(value));
  return e;
}

}  // namespace oracle
