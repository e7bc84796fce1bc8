// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/scale_law.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>

#include "attnscale/refuse.hpp"
#include "scale_law_formulas.hpp"
#include "scale_law_text.hpp"

namespace attnscale {
namespace {

using namespace detail;

/// The alternative of that name with its usual parameters; false if no law has it.
template <std::size_t I = 0>
bool make_named(std::string_view name, scale_law::any& law) {
  if constexpr (I == std::variant_size_v<scale_law::any>) {
    return false;
  } else {
    using L = std::variant_alternative_t<I, scale_law::any>;
    if constexpr (!std::is_same_v<L, laws::table>)
      if (name == law_of<L>::name) {
        law.emplace<I>();
        return true;
      }
    return make_named<I + 1>(name, law);
  }
}

template <class L>
void read_parameters(L& law, const spelled_call& call) {
  const auto fields = law_of<L>::fields();
  for (const spelled_parameter& given : call.parameters) {
    const auto found = std::find_if(fields.begin(), fields.end(),
                                    [&](const field<L>& each) { return each.name == given.name; });
    if (found == fields.end())
      refuse("law '" + call.name + "' has no parameter '" + given.name +
             "'; its parameters: " + listed(fields));
    found->read(law, given.value);
  }
}

}  // namespace

double detail::normal_isf(double p) {
  if (p == 0.5) return 0;
  // Abramowitz and Stegun 26.2.23 to 4.5e-4, then three steps of Halley's method.
  const double t = std::sqrt(-2 * std::log(p));
  double x = t - (2.515517 + t * (0.802853 + t * 0.010328)) /
                     (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
  for (int step = 0; step < 3; ++step) {
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
    const double miss = (std::erfc(x / std::numbers::sqrt2) / 2 - p) / density;
    x += miss / (1 - x * miss / 2);
  }
  return x;
}

std::string_view name_of(n_means meaning) {
  constexpr std::string_view names[] = {
      "not used",           "visible keys",       "row size",           "query position",
      "query position + 1", "query position + 2", "query-key distance", "row entropy",
      "row gaps",           "row spread"};
  return names[static_cast<std::size_t>(meaning)];
}

scale_law scale_law::parse(std::string_view text) {
  double number = 0;
  if (is_number(text, number)) return laws::constant{number};
  const spelled_call call = read_call(text);
  any law;
  if (!make_named(call.name, law)) {
    std::string known;
    for (const std::string_view each : names())
      known += (known.empty() ? "'" : ", '") + std::string(each) + "'";
    refuse("law must be one of " + known + ", got '" + call.name + "'");
  }
  return std::visit(
      [&](auto filled) {
        if constexpr (!std::is_same_v<decltype(filled), laws::table>) read_parameters(filled, call);
        return scale_law(filled);
      },
      law);
}

std::vector<std::string_view> scale_law::names() {
  return []<std::size_t... I>(std::index_sequence<I...>) {
    return std::vector<std::string_view>{law_of<std::variant_alternative_t<I, any>>::name...};
  }
  (std::make_index_sequence<std::variant_size_v<any> - 1>{});
}

std::string_view scale_law::name() const {
  return std::visit([](const auto& law) { return law_of<std::decay_t<decltype(law)>>::name; },
                    law_);
}

n_means scale_law::meaning() const {
  return std::visit([](const auto& law) { return meaning_of(law); }, law_);
}

std::string scale_law::spelling() const {
  return std::visit(
      [](const auto& law) -> std::string {
        using L = std::decay_t<decltype(law)>;
        if constexpr (std::is_same_v<L, laws::table>)
          throw std::logic_error("a table of multipliers has no spelling");
        else if constexpr (std::is_same_v<L, laws::constant>)
          return as_literal(law.value);
        else
          return spell(law);
      },
      law_);
}

std::int64_t scale_law::least_n() const {
  switch (meaning()) {
    case n_means::query_position:
    case n_means::query_key_distance:
    case n_means::row_entropy:
    case n_means::row_gaps:
    case n_means::row_spread:
      return 0;
    case n_means::query_position_plus_2:
      return 2;
    default:
      return 1;
  }
}

bool scale_law::acts_on_some_channels() const {
  return std::holds_alternative<laws::yarn>(law_) || std::holds_alternative<laws::longrope>(law_) ||
         std::holds_alternative<laws::latent_scale>(law_);
}

double scale_law::multiplier(double n, std::int64_t head_dim) const {
  checked(n, head_dim);
  const auto d = static_cast<double>(head_dim);
  return std::visit([&](const auto& law) { return beta(law, n, d); }, law_);
}

double scale_law::scale(double n, std::int64_t head_dim) const {
  checked(n, head_dim);
  const auto d = static_cast<double>(head_dim);
  if (const auto* given = std::get_if<laws::constant>(&law_)) return given->value;
  if (std::holds_alternative<laws::unscaled>(law_)) return 1;
  if (std::holds_alternative<laws::mup>(law_)) return 1 / d;
  return std::visit([&](const auto& law) { return beta(law, n, d); }, law_) / std::sqrt(d);
}

double scale_law::n_of_position(std::int64_t position) const {
  if (position < 0) refuse("position must be at least 0, got " + text_of(position));
  switch (meaning()) {
    case n_means::query_key_distance:
    case n_means::row_entropy:
    case n_means::row_gaps:
    case n_means::row_spread:
      refuse("law '" + std::string(name()) + "' has no n at a position: its n is the " +
             std::string(name_of(meaning())));
    default:
      return static_cast<double>(position + least_n());
  }
}

void scale_law::check() const {
  std::visit(
      [](const auto& law) {
        using L = std::decay_t<decltype(law)>;
        if constexpr (std::is_same_v<L, laws::table>) {
          for (const double each : law.multipliers)
            if (!std::isfinite(each)) refuse("multipliers must be finite, got " + text_of(each));
        } else {
          for (const field<L>& each : law_of<L>::fields()) each.check(law);
          check_together(law);
        }
      },
      law_);
}

void scale_law::checked(double n, std::int64_t head_dim) const {
  if (head_dim < 1) refuse("head_dim must be at least 1, got " + text_of(head_dim));
  const std::int64_t least = least_n();
  if (!(n >= static_cast<double>(least)))
    refuse("n must be at least " + text_of(least) + ", got " + text_of(n));
}

}  // namespace attnscale
