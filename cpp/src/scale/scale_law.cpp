// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/scale_law.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <stdexcept>

#include "attnscale/detail/refuse.hpp"
#include "kernels/numbers.hpp"
#include "kernels/random/quantile_terms.hpp"
#include "scale/scale_law_formulas.hpp"
#include "scale/scale_law_parameters.hpp"
#include "scale/scale_law_text.hpp"

namespace attnscale {
namespace {

using namespace detail;

/// A meaning of n: its name, its smallest value, and whether it is a count (scale_law::counts).
struct meaning_of_n {
  std::string_view name;
  std::int64_t least;
  bool is_count;
};

/// The table, in the order of n_means.
constexpr meaning_of_n meanings_of_n[] = {{"not used", 1, true},
                                          {"visible keys", 1, true},
                                          {"row size", 1, true},
                                          {"query position", 0, true},
                                          {"query position + 1", 1, true},
                                          {"query position + 2", 2, true},
                                          {"query-key distance", 0, false},
                                          {"row entropy", 0, false},
                                          {"row gaps", 0, false},
                                          {"row spread", 0, false}};

static_assert(std::size(meanings_of_n) == static_cast<std::size_t>(n_means::row_spread) + 1);

const meaning_of_n& about(n_means meaning) {
  check_enumerator("meaning", meaning, n_means::row_spread);
  return meanings_of_n[static_cast<std::size_t>(meaning)];
}

void check_places(const laws::table& law, std::span<const double> n) {
  for (const double each : n)
    if (!(each < static_cast<double>(law.multipliers.size())) || each != std::floor(each))
      refuse("n must be a whole number below the " + text_of(law.multipliers.size()) +
             " multipliers of the table, got " + text_of(each));
}

template <class L>
constexpr L usual_law{};

template <class L>
constexpr law_record record_of() {
  using law = law_of<L>;
  const std::span<const law_parameter> parameters(law::parameters);
  if constexpr (std::is_same_v<L, laws::table>)
    return {law::name, law::meaning, parameters, nullptr};
  else
    return {law::name, law::meaning, parameters, &usual_law<L>};
}

template <std::size_t I>
scale_law::any make() {
  return scale_law::any(std::in_place_index<I>);
}

/// Number of laws, without laws::table, which has no spelling, in the order of scale_law::any.
constexpr std::size_t n_named = std::variant_size_v<scale_law::any> - 1;
static_assert(std::is_same_v<std::variant_alternative_t<n_named, scale_law::any>, laws::table>);

constexpr auto records = []<std::size_t... I>(std::index_sequence<I...>) {
  return std::array{record_of<std::variant_alternative_t<I, scale_law::any>>()...};
}
(std::make_index_sequence<n_named + 1>{});

constexpr auto makers = []<std::size_t... I>(std::index_sequence<I...>) {
  return std::array{&make<I>...};
}
(std::make_index_sequence<n_named>{});

const law_record& record_of(const scale_law::any& law) { return records[law.index()]; }

/// Struct of the law's parameters.
void* struct_of(scale_law::any& law) {
  return std::visit([](auto& each) -> void* { return &each; }, law);
}
const void* struct_of(const scale_law::any& law) {
  return std::visit([](const auto& each) -> const void* { return &each; }, law);
}

/// The law of that name with default parameters; refuses unknown names.
scale_law::any usual(std::string_view name) {
  for (std::size_t i = 0; i < n_named; ++i)
    if (records[i].name == name) return makers[i]();
  std::string known;
  for (const std::string_view each : scale_law::names())
    known += (known.empty() ? "'" : ", '") + std::string(each) + "'";
  refuse("law must be one of " + known + ", got '" + std::string(name) + "'");
}

}  // namespace

double detail::normal_isf(double p) {
  if (p == 0) return infinity;
  const auto ratio = [](double x, const double(&terms)[2][quantile_terms::count]) {
    double above = 0, below = 0;
    for (int i = quantile_terms::count - 1; i >= 0; --i) {
      above = above * x + terms[0][i];
      below = below * x + terms[1][i];
    }
    return above / below;
  };
  const double q = 0.5 - p;  // exact for p above 1/4
  if (q <= 0.425) return q * ratio(0.180625 - q * q, quantile_terms::center);
  const double r = std::sqrt(-std::log(p));
  return r <= 5 ? ratio(r - 1.6, quantile_terms::tail) : ratio(r - 5, quantile_terms::far);
}

std::string_view name_of(n_means meaning) { return about(meaning).name; }

scale_law scale_law::parse(std::string_view text) {
  double number = 0;
  if (is_number(text, number)) return laws::constant{number};
  const spelled_call call = read_call(text);
  any law = usual(call.name);
  read_parameters(record_of(law), struct_of(law), call);
  return law;
}

scale_law scale_law::of_numbers(std::string_view name, std::span<const double> numbers) {
  any law = usual(name);
  set_parameters(record_of(law), struct_of(law), numbers);
  return law;
}

std::vector<std::string_view> scale_law::parameters(std::string_view name) {
  std::vector<std::string_view> found;
  for (const law_parameter& each : record_of(usual(name)).parameters) found.push_back(each.name);
  return found;
}

std::vector<std::string_view> scale_law::names() {
  std::vector<std::string_view> found;
  for (std::size_t i = 0; i < n_named; ++i) found.push_back(records[i].name);
  return found;
}

std::string_view scale_law::name() const { return record_of(*law_).name; }

n_means scale_law::meaning() const {
  const auto* const table = std::get_if<laws::table>(law_.get());
  return table ? table->meaning : record_of(*law_).meaning;
}

std::string scale_law::spelling() const {
  if (std::holds_alternative<laws::table>(*law_))
    throw std::logic_error("a table of multipliers has no spelling");
  if (const auto* given = std::get_if<laws::constant>(law_.get())) return as_literal(given->value);
  return spell(record_of(*law_), struct_of(*law_));
}

std::int64_t scale_law::least_n() const { return about(meaning()).least; }

bool scale_law::counts() const { return about(meaning()).is_count; }

bool scale_law::acts_on_some_channels() const {
  return std::holds_alternative<laws::yarn>(*law_) ||
         std::holds_alternative<laws::longrope>(*law_) ||
         std::holds_alternative<laws::latent_scale>(*law_);
}

double scale_law::multiplier(double n, std::int64_t head_dim) const {
  multipliers({&n, 1}, head_dim, {&n, 1});
  return n;
}

double scale_law::scale(double n, std::int64_t head_dim) const {
  scales({&n, 1}, head_dim, {&n, 1});
  return n;
}

void scale_law::multipliers(std::span<const double> n, std::int64_t head_dim,
                            std::span<double> out) const {
  check(n, head_dim, out);
  const auto d = static_cast<double>(head_dim);
  std::visit(
      [&](const auto& law) {
        using L = std::decay_t<decltype(law)>;
        if constexpr (law_of<L>::meaning == n_means::not_used && !std::is_same_v<L, laws::table>)
          return std::fill(out.begin(), out.end(), beta(law, 1, d));
        for (std::size_t i = 0; i < n.size(); ++i) out[i] = beta(law, n[i], d);
      },
      *law_);
}

void scale_law::scales(std::span<const double> n, std::int64_t head_dim,
                       std::span<double> out) const {
  multipliers(n, head_dim, out);
  const auto d = static_cast<double>(head_dim);
  // Exact where beta would be multiplied and divided by the same root of head_dim.
  const auto fill = [&](double scale) { std::fill(out.begin(), out.end(), scale); };
  if (const auto* given = std::get_if<laws::constant>(law_.get())) return fill(given->value);
  if (std::holds_alternative<laws::unscaled>(*law_)) return fill(1);
  if (std::holds_alternative<laws::mup>(*law_)) return fill(1 / d);
  for (double& each : out) each /= std::sqrt(d);
}

double scale_law::n_of_position(std::int64_t position) const {
  check_at_least("position", position, 0);
  if (position > std::int64_t{1} << 53)
    refuse("position must be at most 2^53, beyond which float64 skips integers, got " +
           text_of(position));
  if (!counts())
    refuse("law '" + std::string(name()) + "' has no n at a position: its n is the " +
           std::string(name_of(meaning())));
  return static_cast<double>(position + least_n());
}

void scale_law::check() const {
  check_parameters(record_of(*law_), struct_of(*law_));
  if (const auto* table = std::get_if<laws::table>(law_.get())) {
    about(table->meaning);
    for (const double each : table->multipliers) check_finite("multipliers", each);
  }
  if (const auto* law = std::get_if<laws::sparsity_invariant>(law_.get());
      law && law->n0 <= 2 * law->keys)
    refuse("n0 must be greater than " + text_of(2 * law->keys) + ", got " + text_of(law->n0));
}

void scale_law::check(std::span<const double> n, std::int64_t head_dim,
                      std::span<double> out) const {
  if (head_dim < 1) refuse("head_dim must be at least 1, got " + text_of(head_dim));
  if (out.size() != n.size())
    refuse("out must have one element for each n, got " + text_of(out.size()) + " for " +
           text_of(n.size()));
  const std::int64_t least = least_n();
  for (const double each : n) {
    if (!(each >= static_cast<double>(least)))
      refuse("n must be at least " + text_of(least) + ", got " + text_of(each));
    if (counts()) check_finite("n", each);  // gaps of rows with tied top scores are infinite
  }
  if (const auto* table = std::get_if<laws::table>(law_.get())) check_places(*table, n);
}

void require_one_scale_a_row(const scale_law& law) {
  using detail::refuse;
  const std::string start = "law '" + std::string(law.name()) + "' ";
  if (law.acts_on_some_channels())
    refuse(start + "acts on some channels only, but a scale acts on all");
  if (law.meaning() == n_means::query_key_distance)
    refuse(start + "gives the keys of a row different scales, and scale takes one a row");
  if (!law.counts())
    refuse(start + "needs a measurement of each row: measure it, and give scale an array");
}

}  // namespace attnscale
