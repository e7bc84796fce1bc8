// SPDX-License-Identifier: BSD-3-Clause
//
// Checks of arguments. Messages name the argument, the rule and what was seen.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "attnscale/detail/compiler.hpp"

namespace attnscale::detail {

[[noreturn]] inline void refuse(const std::string& message) {
  throw std::invalid_argument(message);
}

template <std::integral Number>
std::string text_of(Number number) {
  return std::to_string(number);
}

/// A shape in messages: "(2, 3)".
inline std::string text_of(std::span<const std::int64_t> shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

/// Number of entries of a shape; std::bad_alloc if no memory can hold them.
inline std::int64_t entries_of(std::span<const std::int64_t> shape) {
  std::int64_t total = 1;
  for (const std::int64_t extent : shape)
    if (extent == 0) return 0;
  for (const std::int64_t extent : shape) {
    if (total > PTRDIFF_MAX / 64 / extent) throw std::bad_alloc();
    total *= extent;
  }
  return total;
}

/// Shortest text that identifies a number: 0.1, 1e+39, nan.
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

/// Refuses numbers that are not finite or below `least`.
inline void check_finite_from(std::string_view name, double number, double least) {
  check_finite(name, number);
  if (number < least)
    refuse(std::string(name) + " must be at least " + text_of(least) + ", got " + text_of(number));
}

/// Refuses numbers that are not finite or not above `bound`.
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

/// Checks num_threads of any struct.
inline void check_threads(int num_threads) {
  if (num_threads < 0)
    refuse("num_threads must be at least 1, or 0 for the default, got " + text_of(num_threads));
}

[[noreturn]] inline void refuse_enumerator(const char* name, unsigned seen, unsigned most) {
  refuse(std::string(name) + " must be an enumerator of its type, from 0 to " + text_of(most) +
         ", got " + text_of(seen));
}

/// Refuses values that are not enumerators of the type, whose last one is `last`: a cast makes such
/// values. The throw is a separate function, so that checking a constant costs nothing.
template <class Enum>
requires std::is_enum_v<Enum>
constexpr void check_enumerator(const char* name, Enum value, Enum last) {
  const auto seen = static_cast<unsigned>(value), most = static_cast<unsigned>(last);
  if (seen > most) refuse_enumerator(name, seen, most);
}

/// Refuses a null pointer for `count` elements.
inline void check_memory(const char* name, const void* memory, std::int64_t count) {
  if (!memory && count > 0)
    refuse(std::string(name) + " must point at memory for " + text_of(count) +
           (count == 1 ? " element" : " elements") + ", got a null pointer");
}

/// Refuses non-negative extents whose product no memory holds.
inline void check_matrix_fits(const char* name, std::int64_t rows, std::int64_t columns) {
  if (columns > 0 && rows > (std::int64_t{1} << 59) / columns)
    refuse(std::string(name) + " must be small enough for memory, got " + text_of(rows) +
           " with rows of " + text_of(columns) + " numbers");
}

}  // namespace attnscale::detail
