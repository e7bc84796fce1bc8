// SPDX-License-Identifier: BSD-3-Clause
//
// How arguments are refused. Messages name the argument, the rule and what was seen.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

namespace attnscale::detail {

[[noreturn]] inline void refuse(const std::string& message) {
  throw std::invalid_argument(message);
}

template <std::integral Number>
std::string text_of(Number number) {
  return std::to_string(number);
}

/// With as many digits as it takes to tell the number from others: 0.1, 1e+39, nan.
template <std::floating_point Number>
std::string text_of(Number number) {
  if (std::isnan(number)) return "nan";  // whatever its sign
  char text[32];
  for (int digits = 6; digits <= 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, static_cast<double>(number));
    if (static_cast<Number>(std::strtod(text, nullptr)) == number) break;
  }
  return text;
}

inline void check_finite(std::string_view name, double number) {
  if (!std::isfinite(number)) refuse(std::string(name) + " must be finite, got " + text_of(number));
}

/// Finite, and at least that.
inline void check_finite_from(std::string_view name, double number, double least) {
  check_finite(name, number);
  if (number < least)
    refuse(std::string(name) + " must be at least " + text_of(least) + ", got " + text_of(number));
}

/// Finite, and above that.
inline void check_greater(std::string_view name, double number, double bound) {
  check_finite(name, number);
  if (number <= bound)
    refuse(std::string(name) + " must be greater than " + text_of(bound) + ", got " +
           text_of(number));
}

inline void check_in_unit_interval(std::string_view name, double number) {
  if (!(number > 0 && number < 1))
    refuse(std::string(name) + " must be in (0, 1), got " + text_of(number));
}

inline void check_at_least(const char* name, std::int64_t number, std::int64_t least) {
  if (number < least)
    refuse(std::string(name) + " must be at least " + text_of(least) + ", got " + text_of(number));
}

}  // namespace attnscale::detail
