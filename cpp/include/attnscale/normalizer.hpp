// SPDX-License-Identifier: BSD-3-Clause
//
// attention_options::normalizer: from the scores of a row to its weights. Formulas stand beside the
// functions; the documentation of the Python package has their sources.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "attnscale/detail/refuse.hpp"
#include "attnscale/normalizer_traits.hpp"
#include "attnscale/number_or_array.hpp"
#include "attnscale/types.hpp"

namespace attnscale {

/// A normalizer and its numbers, from the functions of attnscale::normalizers.
struct normalizer_choice {
  normalizer rule = normalizer::softmax;
  normalizer_numbers numbers{};
  /// Per-row number, as normalizer_traits::number says; it broadcasts to (..., heads, n_queries).
  number_or_array<double> number{};
};

namespace normalizers {

/// exp(s) / sum exp(s).
inline normalizer_choice softmax() { return {}; }
/// exp(s) / (n + sum exp(s)); n > 0.
inline normalizer_choice softmax_n(double n) {
  if (!std::isfinite(n)) detail::refuse("n must be finite, got " + detail::text_of(n));
  if (n <= 0)
    detail::refuse("n must be greater than 0 (softmax() is n = 0), got " + detail::text_of(n));
  return {normalizer::softmax, {}, std::log(n)};
}
/// Softmax with one more outcome of this score, whose value is 0.
inline normalizer_choice sink(number_or_array<double> score) {
  if (!score) detail::refuse("score of a sink must be a number or an array, got none");
  return {normalizer::softmax, {}, std::move(score)};
}
/// 1 / (1 + exp(-s - bias)).
inline normalizer_choice sigmoid(number_or_array<double> bias) {
  if (!bias) detail::refuse("bias of sigmoid must be a number or an array, got none");
  return {normalizer::sigmoid, {}, std::move(bias)};
}
/// factor * max(s, 0); without a factor max(s, 0) over its sum.
inline normalizer_choice relu(number_or_array<double> factor = {}) {
  return {normalizer::relu, {}, std::move(factor)};
}
/// factor * max(s, 0)^2; without a factor max(s, 0)^2 over its sum.
inline normalizer_choice squared_relu(number_or_array<double> factor = {}) {
  return {normalizer::squared_relu, {}, std::move(factor)};
}
/// max(exp(s) - 1, 0) / (sum |exp(s) - 1| + eps).
inline normalizer_choice softpick(double eps = 1e-8) {
  return {normalizer::softpick, {.eps = eps}};
}
/// max((alpha - 1) s - tau, 0)^(1 / (alpha - 1)) with the sum 1; alpha > 1.
inline normalizer_choice entmax(double alpha) { return {normalizer::entmax, {.alpha = alpha}}; }
/// entmax with alpha = 2: max(s - tau, 0) with the sum 1.
inline normalizer_choice sparsemax() { return entmax(2); }
/// Softmax of the k largest scores; ties go to the first keys.
inline normalizer_choice top_k(std::int64_t k) { return {normalizer::top_k, {.k = k}}; }

}  // namespace normalizers

namespace detail {

/// Checks the numbers of a normalizer. Unused ones have their defaults.
inline void check_numbers(const normalizer_numbers& numbers) {
  const auto [alpha, k, eps] = numbers;
  if (!(alpha > 1 && alpha <= std::numeric_limits<double>::max()))
    refuse("alpha must be above 1 (where entmax is softmax) and finite, got " + text_of(alpha));
  if (k < 1) refuse("k must be at least 1, got " + text_of(k));
  if (!(eps >= 0 && std::isfinite(eps)))
    refuse("eps must be finite and at least 0, got " + text_of(eps));
}

/// Refuses numbers that the normalizer does not use.
inline void check_choice(const normalizer_choice& choice) {
  using enum normalizer;
  check_enumerator("normalizer", choice.rule, top_k);
  check_numbers(choice.numbers);
  const normalizer_numbers usual;
  const auto& [alpha, k, eps] = choice.numbers;
  const auto check = [&](bool given, const char* name, bool is_own, const char* own) {
    if (given && !is_own)
      refuse("normalizer: " + std::string(name) + " goes with " + own + ", got another rule");
  };
  check(alpha != usual.alpha, "alpha", choice.rule == entmax, "entmax");
  check(k != usual.k, "k", choice.rule == top_k, "top_k");
  check(eps != usual.eps, "eps", choice.rule == softpick, "softpick");
  const normalizer_traits& traits = traits_of(choice.rule);
  if (choice.number && traits.number == row_number::none)
    refuse("normalizer: rows of " + std::string(traits.name) + " have no number, got one");
}

}  // namespace detail
}  // namespace attnscale
