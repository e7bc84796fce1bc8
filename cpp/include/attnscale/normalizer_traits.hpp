// SPDX-License-Identifier: BSD-3-Clause
//
// Properties of each normalizer. The functions of scores are structs in
// src/kernels/softmax/normalizers-inl.hpp (or, where they take all scores of a row, sparse/).
#pragma once

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>

#include "attnscale/statistic.hpp"
#include "attnscale/types.hpp"

namespace attnscale {

/// A normalizer's name and the properties of its rows.
struct normalizer_traits {
  normalizer rule;
  std::string_view name;
  row_number number;         ///< meaning of a row's number
  statistic_set statistics;  ///< statistics of its rows
  /// exp(score) over their sum, with or without a sink: sums over parts of the keys add up, the
  /// weights follow from lse, and statistics have gradients.
  bool is_exponential = false;
  bool every_key = false;         ///< every visible key has a positive weight
  bool from_all_scores = false;   ///< weights depend on all scores of a row, not one by one
  bool solves_threshold = false;  ///< powers of scores, in nats, less a threshold of the row
  bool divides = false;  ///< functions of single scores over their sum, unless a row has a factor
  statistic_set of_distribution{};  ///< more of them, if the weights are divided by their sum
};

/// Statistics of weights that are functions of single scores.
inline constexpr statistic_set pointwise_statistics =
    statistics_with(&statistic_traits::of_weights);
/// Additional statistics of weights that are divided by their sum.
inline constexpr statistic_set distribution_statistics =
    statistics_with(&statistic_traits::of_shares);
/// Statistics of softmax and top_k; entmax has all but lse.
inline constexpr statistic_set softmax_statistics =
    all_statistics | statistics_with(&statistic_traits::asked_by_name);
inline constexpr statistic_set entmax_statistics = softmax_statistics.without(statistic::lse);

/// The table, one row per normalizer.
inline constexpr std::array<normalizer_traits, 7> all_normalizers{{
    {.rule = normalizer::softmax,
     .name = "softmax",
     .number = row_number::sink,
     .statistics = softmax_statistics,
     .is_exponential = true,
     .every_key = true,
     .divides = true},
    {.rule = normalizer::sigmoid,
     .name = "sigmoid",
     .number = row_number::bias,
     .statistics = pointwise_statistics,
     .every_key = true},
    {.rule = normalizer::relu,
     .name = "relu",
     .number = row_number::factor,
     .statistics = pointwise_statistics,
     .divides = true,
     .of_distribution = distribution_statistics},
    {.rule = normalizer::squared_relu,
     .name = "squared_relu",
     .number = row_number::factor,
     .statistics = pointwise_statistics,
     .divides = true,
     .of_distribution = distribution_statistics},
    {.rule = normalizer::softpick,
     .name = "softpick",
     .number = row_number::none,
     .statistics = pointwise_statistics,
     .divides = true},
    {.rule = normalizer::entmax,
     .name = "entmax",
     .number = row_number::none,
     .statistics = entmax_statistics,
     .from_all_scores = true,
     .solves_threshold = true},
    {.rule = normalizer::top_k,
     .name = "top_k",
     .number = row_number::none,
     .statistics = softmax_statistics,
     .from_all_scores = true},
}};

/// Table row of a normalizer.
inline const normalizer_traits& traits_of(normalizer rule) {
  for (const normalizer_traits& each : all_normalizers)
    if (each.rule == rule) return each;
  detail::refuse("normalizer must be an enumerator of its type, from 0 to " +
                 detail::text_of(all_normalizers.size() - 1) + ", got " +
                 detail::text_of(static_cast<unsigned>(rule)));
}

/// Normalizer by name; throws std::invalid_argument for an unknown name.
inline normalizer normalizer_named(std::string_view name) {
  for (const normalizer_traits& each : all_normalizers)
    if (each.name == name) return each.rule;
  throw std::invalid_argument("there is no normalizer " + std::string(name));
}

/// Whether the rows of a normalizer have a statistic. distribution: whether its weights are divided
/// by their sum, for normalizers with that choice.
inline bool has_statistic(normalizer rule, bool distribution, statistic which) {
  const normalizer_traits& traits = traits_of(rule);
  return traits.statistics.contains(which) ||
         (distribution && traits.of_distribution.contains(which));
}

/// Name of a row number.
inline constexpr std::string_view name_of(row_number number) {
  constexpr std::array<std::string_view, 4> names{"", "sink", "bias", "factor"};
  return names[static_cast<std::size_t>(number)];
}

}  // namespace attnscale
