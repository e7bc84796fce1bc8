// SPDX-License-Identifier: BSD-3-Clause
//
// The list of statistics of a row, and sets of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

#include "attnscale/refuse.hpp"

namespace attnscale {

/// What attention_statistics can report of a row with scores s and weights p. A sink is an outcome
/// of lse, entropy, mean_score, score_variance, concentration and renyi2, and no key.
/// has_statistic() of normalizer_traits.hpp says which of them the rows of a normalizer have.
enum class statistic : std::uint8_t {
  lse,             ///< ln sum exp s
  entropy,         ///< -sum p ln p, in nats
  max_score,       ///< largest score
  mean_score,      ///< sum p s
  score_variance,  ///< sum p (s - mean_score)^2
  concentration,   ///< sum p^2
  n_visible,       ///< keys that the row may see
  argmax,          ///< first key with the largest score, -1 if there is none
  max_weight,      ///< largest p
  sink_weight,     ///< weight of the sink, 0 without one
  support,         ///< keys with a positive weight
  renyi2,          ///< -ln sum p^2, the Renyi entropy of order 2, in nats
  min_score        ///< least score
};

/// Their names, in the order of the enumeration.
inline constexpr std::array<std::string_view, 13> statistic_names{
    "lse",           "entropy",   "max_score", "mean_score", "score_variance",
    "concentration", "n_visible", "argmax",    "max_weight", "sink_weight",
    "support",       "renyi2",    "min_score"};
static_assert(statistic_names.size() == static_cast<std::size_t>(statistic::min_score) + 1);

namespace detail {

/// Its place in the enumeration; a cast makes others, which are a std::invalid_argument.
inline constexpr std::size_t place_of(statistic each) {
  check_enumerator("statistic", each, statistic::min_score);
  return static_cast<std::size_t>(each);
}

}  // namespace detail

/// Its name.
inline constexpr std::string_view name_of(statistic each) {
  return statistic_names[detail::place_of(each)];
}

/// The statistic of a name; another name is a std::invalid_argument.
inline statistic statistic_named(std::string_view name) {
  for (std::size_t i = 0; i < statistic_names.size(); ++i)
    if (statistic_names[i] == name) return static_cast<statistic>(i);
  throw std::invalid_argument("there is no statistic " + std::string(name));
}

/// Whether its values are integers (std::int64_t); the others are of the type of the arithmetic.
inline constexpr bool is_count(statistic each) {
  return each == statistic::n_visible || each == statistic::argmax || each == statistic::support;
}

/// Written {statistic::entropy, statistic::argmax}.
class statistic_set {
 public:
  constexpr statistic_set(std::initializer_list<statistic> wanted) {
    for (const statistic each : wanted) bits_ |= bit(each);
  }
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

/// Of a softmax; sink_weight and support are asked for by name.
inline constexpr statistic_set all_statistics{
    statistic::lse,        statistic::entropy,        statistic::max_score,
    statistic::mean_score, statistic::score_variance, statistic::concentration,
    statistic::n_visible,  statistic::argmax,         statistic::max_weight,
    statistic::renyi2,     statistic::min_score};

}  // namespace attnscale
