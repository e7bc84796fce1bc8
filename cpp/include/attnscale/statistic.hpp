// SPDX-License-Identifier: BSD-3-Clause
//
// The list of row statistics, and sets of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

#include "attnscale/detail/refuse.hpp"

namespace attnscale {

/// Statistics of attention_statistics, for a row with scores s and weights p. A sink counts as an
/// outcome in lse, entropy, mean_score, score_variance, concentration and renyi2, and is not a key.
/// has_statistic() of normalizer_traits.hpp says which ones the rows of a normalizer have.
enum class statistic : std::uint8_t {
  lse,             ///< ln sum exp s
  entropy,         ///< -sum p ln p, in nats
  max_score,       ///< largest score
  mean_score,      ///< sum p s
  score_variance,  ///< sum p (s - mean_score)^2
  concentration,   ///< sum p^2
  n_visible,       ///< number of visible keys
  argmax,          ///< first key with the largest score, -1 without keys
  max_weight,      ///< largest p
  sink_weight,     ///< weight of the sink, 0 without one
  support,         ///< number of keys with a positive weight
  renyi2,          ///< -ln sum p^2, the Renyi entropy of order 2, in nats
  min_score        ///< smallest score
};

/// Properties of a statistic.
struct statistic_traits {
  statistic which;
  std::string_view name;
  std::string_view unit{};     ///< "nat", or empty
  bool of_weights = false;     ///< rows of every normalizer have it
  bool of_shares = false;      ///< rows whose weights are divided by their sum have it, too
  bool is_count = false;       ///< its values are integers, see is_count()
  bool has_gradient = false;   ///< for exponentials, see normalizer_traits
  bool asked_by_name = false;  ///< not in all_statistics
};

/// The table, one row per statistic, in the order of the enumeration.
inline constexpr std::array<statistic_traits, 13> statistic_table{{
    {.which = statistic::lse, .name = "lse", .has_gradient = true},
    {.which = statistic::entropy,
     .name = "entropy",
     .unit = "nat",
     .of_shares = true,
     .has_gradient = true},
    {.which = statistic::max_score, .name = "max_score", .of_weights = true, .has_gradient = true},
    {.which = statistic::mean_score, .name = "mean_score", .has_gradient = true},
    {.which = statistic::score_variance, .name = "score_variance", .has_gradient = true},
    {.which = statistic::concentration,
     .name = "concentration",
     .of_shares = true,
     .has_gradient = true},
    {.which = statistic::n_visible, .name = "n_visible", .of_weights = true, .is_count = true},
    {.which = statistic::argmax, .name = "argmax", .of_weights = true, .is_count = true},
    {.which = statistic::max_weight,
     .name = "max_weight",
     .of_weights = true,
     .has_gradient = true},
    {.which = statistic::sink_weight, .name = "sink_weight", .asked_by_name = true},
    {.which = statistic::support,
     .name = "support",
     .of_weights = true,
     .is_count = true,
     .asked_by_name = true},
    {.which = statistic::renyi2,
     .name = "renyi2",
     .unit = "nat",
     .of_shares = true,
     .has_gradient = true},
    {.which = statistic::min_score, .name = "min_score", .of_weights = true},
}};

/// Names, in the order of the enumeration.
inline constexpr auto statistic_names = [] {
  std::array<std::string_view, statistic_table.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = statistic_table[i].name;
  return names;
}();

namespace detail {

/// Index in the enumeration; throws std::invalid_argument for other values, which a cast can make.
inline constexpr std::size_t place_of(statistic each) {
  check_enumerator("statistic", each, statistic_table.back().which);
  return static_cast<std::size_t>(each);
}

}  // namespace detail

static_assert([] {
  for (std::size_t i = 0; i < statistic_table.size(); ++i)
    if (detail::place_of(statistic_table[i].which) != i) return false;
  return true;
}());

/// Name of a statistic.
inline constexpr std::string_view name_of(statistic each) {
  return statistic_names[detail::place_of(each)];
}

/// Statistic by name; throws std::invalid_argument for an unknown name.
inline statistic statistic_named(std::string_view name) {
  for (std::size_t i = 0; i < statistic_names.size(); ++i)
    if (statistic_names[i] == name) return static_cast<statistic>(i);
  throw std::invalid_argument("there is no statistic " + std::string(name));
}

/// Whether its values are integers (std::int64_t); other statistics have the compute type.
inline constexpr bool is_count(statistic each) {
  return statistic_table[detail::place_of(each)].is_count;
}

/// A set of statistics: {statistic::entropy, statistic::argmax}.
class statistic_set {
 public:
  constexpr statistic_set(std::initializer_list<statistic> wanted) {
    for (const statistic each : wanted) bits_ |= bit(each);
  }
  constexpr bool operator==(const statistic_set&) const = default;
  constexpr bool contains(statistic each) const { return (bits_ & bit(each)) != 0; }

  constexpr statistic_set operator|(const statistic_set& other) const {
    statistic_set both = *this;
    both.bits_ |= other.bits_;
    return both;
  }
  constexpr statistic_set without(statistic each) const {
    statistic_set rest = *this;
    rest.bits_ &= ~bit(each);
    return rest;
  }

 private:
  static constexpr unsigned bit(statistic each) { return 1u << detail::place_of(each); }

  unsigned bits_ = 0;
};

/// The statistics with a trait, or (is_so = false) without it.
inline constexpr statistic_set statistics_with(bool statistic_traits::*trait, bool is_so = true) {
  statistic_set found{};
  for (const statistic_traits& each : statistic_table)
    if (each.*trait == is_so) found = found | statistic_set{each.which};
  return found;
}

/// All statistics of a plain softmax, except two that add nothing there: sink_weight, which is 0
/// without a sink, and support, which equals n_visible.
inline constexpr statistic_set all_statistics =
    statistics_with(&statistic_traits::asked_by_name, false);

}  // namespace attnscale
