// SPDX-License-Identifier: BSD-3-Clause
//
// Parameters of a scale law without its type: names, rules, and positions in the law's struct. The
// code that reads, checks and writes them is compiled once for all laws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "attnscale/scale_law.hpp"
#include "scale/scale_law_text.hpp"

namespace attnscale::detail {

/// Rules of parameters: numbers under a condition, or flags.
enum class rule : std::uint8_t { finite, above, at_least, whole, given_at_least, between, flag };

/// A member of a law's struct: a double, or a bool if it is a flag.
struct law_parameter {
  std::string_view name;
  std::size_t offset;  ///< bytes from the beginning of the struct
  rule how;
  double bound;
};

/// A law for its text form.
struct law_record {
  std::string_view name;
  n_means meaning;
  std::span<const law_parameter> parameters;
  const void* usual;  ///< the struct with default parameters; null for laws::table
};

/// Sets the parameters of a spelling. Refuses names that the law does not have, and texts that are
/// not values.
void read_parameters(const law_record& record, void* law, const spelled_call& call);

/// Sets all parameters, in their order; refuses another number of them.
void set_parameters(const law_record& record, void* law, std::span<const double> numbers);

/// Refuses a parameter that is out of range, or missing.
void check_parameters(const law_record& record, const void* law);

/// NAME, or NAME(parameter=value, ...) with the parameters that differ from their defaults.
std::string spell(const law_record& record, const void* law);

}  // namespace attnscale::detail
