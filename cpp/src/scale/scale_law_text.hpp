// SPDX-License-Identifier: BSD-3-Clause
//
// Spellings of laws: NAME or NAME(parameter=value, ...), whose values are numbers, True or False.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attnscale::detail {

/// The shortest text that reads back as the same number; whole numbers have no point.
std::string as_literal(double number);

struct spelled_parameter {
  std::string name, value;
};

struct spelled_call {
  std::string name;
  std::vector<spelled_parameter> parameters;
};

/// Name and parameters of a spelling; refuses other texts.
spelled_call read_call(std::string_view text);

/// Whether the whole text is a number, which is then stored.
bool is_number(std::string_view text, double& number);

/// Number in a value's text. Refuses other texts, naming the parameter.
double read_number(std::string_view name, const std::string& text);

/// Flag: True or False.
bool read_flag(std::string_view name, const std::string& text);

}  // namespace attnscale::detail
