// SPDX-License-Identifier: BSD-3-Clause
#include "scale/scale_law_parameters.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attnscale/detail/refuse.hpp"

namespace attnscale::detail {
namespace {

/// Value of a parameter of this law, 0 or 1 for a flag.
double get(const law_parameter& parameter, const void* law) {
  const auto* const place = static_cast<const char*>(law) + parameter.offset;
  if (parameter.how == rule::flag) return *reinterpret_cast<const bool*>(place) ? 1 : 0;
  double number = 0;
  std::memcpy(&number, place, sizeof number);
  return number;
}

void set(const law_parameter& parameter, void* law, double number) {
  auto* const place = static_cast<char*>(law) + parameter.offset;
  if (parameter.how == rule::flag)
    *reinterpret_cast<bool*>(place) = number != 0;
  else
    std::memcpy(place, &number, sizeof number);
}

void check(const law_record& record, const law_parameter& parameter, double value) {
  const std::string own(parameter.name);
  const rule how = parameter.how;
  if (std::isnan(value)) {
    if (how == rule::given_at_least) return;
    const std::string law(record.name);
    refuse("law '" + law + "' needs " + own + ": '" + law + "(" + own + "=...)'");
  }
  check_finite(own, value);
  if (how == rule::above) check_greater(own, value, parameter.bound);
  if (how == rule::at_least || how == rule::given_at_least || how == rule::whole)
    check_finite_from(own, value, parameter.bound);
  if (how == rule::whole && value != std::floor(value))
    refuse(own + " must be an integer, got " + text_of(value));
  if (how == rule::between) check_in_unit_interval(own, value);
}

double value_of(const law_parameter& parameter, const std::string& text) {
  if (parameter.how == rule::flag) return read_flag(parameter.name, text) ? 1 : 0;
  return read_number(parameter.name, text);
}

std::string listed(std::span<const law_parameter> parameters) {
  std::string text;
  for (const law_parameter& each : parameters)
    text += (text.empty() ? "" : ", ") + std::string(each.name);
  return text.empty() ? "none" : text;
}

}  // namespace

void read_parameters(const law_record& record, void* law, const spelled_call& call) {
  for (auto at = call.parameters.begin(); at != call.parameters.end(); ++at) {
    const spelled_parameter& given = *at;
    const auto same_name = [&](const spelled_parameter& each) { return each.name == given.name; };
    if (std::find_if(call.parameters.begin(), at, same_name) != at)
      refuse("law '" + call.name + "' must have each parameter once, got '" + given.name +
             "' twice");
    const auto found =
        std::find_if(record.parameters.begin(), record.parameters.end(),
                     [&](const law_parameter& each) { return each.name == given.name; });
    if (found == record.parameters.end())
      refuse("law '" + call.name + "' has no parameter '" + given.name +
             "'; its parameters: " + listed(record.parameters));
    if (found->how != rule::given_at_least || given.value != "None")
      set(*found, law, value_of(*found, given.value));
  }
}

void set_parameters(const law_record& record, void* law, std::span<const double> numbers) {
  if (numbers.size() != record.parameters.size())
    refuse("law '" + std::string(record.name) + "' has " + text_of(record.parameters.size()) +
           " parameters, got " + text_of(numbers.size()));
  for (std::size_t i = 0; i < numbers.size(); ++i) set(record.parameters[i], law, numbers[i]);
}

void check_parameters(const law_record& record, const void* law) {
  for (const law_parameter& each : record.parameters)
    if (each.how != rule::flag) check(record, each, get(each, law));
}

std::string spell(const law_record& record, const void* law) {
  std::string text;
  for (const law_parameter& each : record.parameters) {
    const double value = get(each, law);
    if (std::isnan(value) || value == get(each, record.usual)) continue;
    const std::string literal =
        each.how == rule::flag ? (value != 0 ? "True" : "False") : as_literal(value);
    text += (text.empty() ? "" : ", ") + std::string(each.name) + "=" + literal;
  }
  const std::string name(record.name);
  return text.empty() ? name : name + "(" + text + ")";
}

}  // namespace attnscale::detail
