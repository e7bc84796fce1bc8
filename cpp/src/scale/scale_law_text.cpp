// SPDX-License-Identifier: BSD-3-Clause
#include "scale/scale_law_text.hpp"

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "attnscale/detail/refuse.hpp"

namespace attnscale::detail {
namespace {

[[noreturn]] void not_a_call(std::string_view text) {
  refuse("a law is written NAME or NAME(parameter=value, ...), got '" + std::string(text) + "'");
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())))
    text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())))
    text.remove_suffix(1);
  return text;
}

bool is_name(std::string_view text) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text.front()))) return false;
  for (const char c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_') return false;
  return true;
}

}  // namespace

std::string as_literal(double number) {
  const bool whole = number == std::floor(number) && std::fabs(number) < 0x1p53;
  if (whole) return std::to_string(static_cast<long long>(number));
#if defined(__wasm__)
  return text_of(number);  // the tables of to_chars have 130 kB
#else
  char text[64];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
#endif
}

spelled_call read_call(std::string_view given) {
  const std::string_view text = trimmed(given);
  const std::size_t open = text.find('(');
  spelled_call call{std::string(trimmed(text.substr(0, open))), {}};
  if (!is_name(call.name)) not_a_call(given);
  if (open == std::string_view::npos) return call;
  if (text.back() != ')') not_a_call(given);
  std::string_view rest = trimmed(text.substr(open + 1, text.size() - open - 2));
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view one = rest.substr(0, comma);
    const std::size_t equals = one.find('=');
    if (equals == std::string_view::npos) not_a_call(given);
    const std::string_view name = trimmed(one.substr(0, equals));
    if (!is_name(name)) not_a_call(given);
    call.parameters.push_back({std::string(name), std::string(trimmed(one.substr(equals + 1)))});
    rest = comma == std::string_view::npos ? std::string_view{} : trimmed(rest.substr(comma + 1));
  }
  return call;
}

bool is_number(std::string_view given, double& number) {
  const std::string text(trimmed(given));
  char* end = nullptr;
  number = std::strtod(text.c_str(), &end);
  // strtod also accepts hexadecimal numbers, "inf" and "nan", which are not literals of Python.
  return !text.empty() && end == text.c_str() + text.size() &&
         text.find_first_of("xXnN") == std::string::npos;
}

double read_number(std::string_view name, const std::string& text) {
  double number = 0;
  if (!is_number(text, number))
    refuse(std::string(name) + " must be a number, got " + (text.empty() ? "nothing" : text));
  return number;
}

bool read_flag(std::string_view name, const std::string& text) {
  if (text != "True" && text != "False")
    refuse(std::string(name) + " must be True or False, got " + text);
  return text == "True";
}

}  // namespace attnscale::detail
