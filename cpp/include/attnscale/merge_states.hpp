// SPDX-License-Identifier: BSD-3-Clause
//
// Merging states over parts of the keys into the state over all of them. With w_k = exp(lse_k) /
// sum_l exp(lse_l), output and mean_score are the w-weighted means of the parts: associative and
// commutative up to rounding. A state without keys changes nothing, whatever its output and
// mean_score hold.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "attnscale/detail/call_description.hpp"
#include "attnscale/results.hpp"

namespace attnscale {
namespace detail {

template <class T, class Output>
void check_states(const std::vector<attention_state_result<T, Output>>& states) {
  if (states.empty()) refuse("states must hold at least one state, got none");
  const auto shape_of = [](const auto& array) {
    return extents(array.shape().begin(), array.shape().end());
  };
  const auto check = [&](const char* name, const auto& seen, const auto& wanted) {
    if (seen.shape() != wanted.shape())
      refuse(std::string("states must agree in the shape of ") + name + ", got " +
             text_of(shape_of(wanted)) + " and " + text_of(shape_of(seen)));
  };
  for (const auto& state : states) {
    check("output", state.output, states[0].output);
    check("lse", state.lse, states[0].lse);
    check("mean_score", state.mean_score, states[0].lse);
    if (state.lse_rest.dimension()) check("lse_rest", state.lse_rest, states[0].lse);
    if (state.mean_rest.dimension()) check("mean_rest", state.mean_rest, states[0].lse);
  }
  extents rows = shape_of(states[0].output);
  if (!rows.empty()) rows.pop_back();
  if (rows != shape_of(states[0].lse))
    refuse("the output of a state must have one axis more than its lse, got " +
           text_of(shape_of(states[0].output)) + " and " + text_of(shape_of(states[0].lse)));
}

/// lse and mean_score of a merged row.
struct merged_row {
  double lse, mean;
};

/// Merges row r of every state into row r of `output`, in double. Products with a weight that
/// underflowed to 0 are formed, too: 0 * inf = NaN makes a visible infinity show.
template <class T, class Output>
merged_row merge_row(const std::vector<attention_state_result<T, Output>>& states, std::size_t r,
                     std::size_t value_dim, dense_array<Output>& output) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  double top = -infinity, total = 0, mean = 0;
  std::vector<const attention_state_result<T, Output>*> parts;
  for (const auto& state : states)
    if (state.has_keys(r)) parts.push_back(&state);
  for (const auto* part : parts) top = std::fmax(top, part->wide_lse(r));
  if (top == -infinity) top = 0;  // no keys, or NaN: exp(lse) is NaN as it should be
  std::vector<double> weight;
  for (const auto* part : parts) {
    weight.push_back(std::exp(part->wide_lse(r) - top));
    total += weight.back();
  }
  for (std::size_t k = 0; k < parts.size(); ++k) {
    weight[k] /= total;
    mean += weight[k] * parts[k]->wide_mean(r);
  }
  for (std::size_t c = r * value_dim; c < (r + 1) * value_dim; ++c) {
    double sum = 0;
    for (std::size_t k = 0; k < parts.size(); ++k) sum += weight[k] * parts[k]->output.flat(c);
    output.flat(c) = static_cast<Output>(static_cast<T>(sum));
  }
  return {std::log(total) + top, mean};
}

}  // namespace detail

/// State over all keys, from at least one state of equal shapes. Their sets of keys must not
/// overlap.
template <class T, class Output = T>
attention_state_result<T, Output> merge_states(
    const std::vector<attention_state_result<T, Output>>& states) {
  detail::check_states(states);
  attention_state_result<T, Output> merged = states[0];
  dense_array<double> lse = xt::cast<double>(merged.lse), mean = lse;
  const std::size_t rows = lse.size();
  const std::size_t value_dim = rows ? merged.output.size() / rows : 0;
  for (std::size_t r = 0; r < rows; ++r) {
    const auto row = detail::merge_row(states, r, value_dim, merged.output);
    lse.flat(r) = row.lse;
    mean.flat(r) = row.mean;
  }
  merged.set_rows(lse, mean);
  return merged;
}

}  // namespace attnscale
