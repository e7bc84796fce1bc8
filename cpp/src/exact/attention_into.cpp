// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/attention_into.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "attnscale/detail/refuse.hpp"

namespace attnscale {
namespace {

using detail::refuse;
using detail::text_of;

/// Refuses a written array with elements that share memory: in the order of their strides, every
/// axis has to step over everything that the axes before it reach.
void check_places(const std::string& name, const strided_array& array) {
  std::vector<std::pair<std::ptrdiff_t, std::int64_t>> axes;
  extents strides;
  for (int axis = array.dimension(); axis > 0; --axis) {
    if (array.extent(axis) == 0) return;
    strides.push_back(array.stride(axis));
    if (array.extent(axis) > 1) axes.emplace_back(std::abs(strides.back()), array.extent(axis));
  }
  std::sort(axes.begin(), axes.end());
  std::ptrdiff_t reach = 0;
  for (const auto& [stride, extent] : axes) {
    if (stride <= reach)
      refuse(name + " must have separate memory for each of its elements, got strides " +
             text_of(strides));
    reach += (extent - 1) * stride;
  }
}

/// Refuses statistics that are not row-major, as the core writes them.
void check_row_major(const std::string& name, const strided_array& array) {
  std::int64_t expected = 1;
  for (int axis = 1; axis <= array.dimension(); ++axis) {
    if (array.extent(axis) > 1 && array.stride(axis) != expected)
      refuse(name + " must be row-major without gaps, got the stride " +
             text_of(array.stride(axis)) + " where " + text_of(expected) + " is needed");
    expected *= array.extent(axis);
  }
}

/// Memory locations of an array's elements.
class places {
 public:
  explicit places(const strided_array& array) {
    std::tie(first_, last_) = array.memory();
    for (int axis = 1; axis <= array.dimension(); ++axis)
      if (array.stride(axis) != 0)
        steps_.emplace_back(std::abs(array.stride(axis)) * array.item_size(), array.extent(axis));
    item_ = array.item_size();
  }

  /// Whether the arrays share no element: they are apart in memory, or each stays in its own part
  /// of slots that both repeat.
  bool apart_from(const places& other) const {
    if (last_ <= other.first_ || other.last_ <= first_) return true;
    for (const places* of : {this, &other})
      for (const auto& step : of->steps_)
        if (in_slots(other, step.first)) return true;
    return false;
  }

 private:
  /// Whether both stay within repeated slots: steps of at least `least` bytes repeat a slot;
  /// shorter ones have to stay within it.
  bool in_slots(const places& other, std::ptrdiff_t least) const {
    std::ptrdiff_t slot = 0, own = item_, others = other.item_;
    for (const auto& [step, extent] : steps_)
      step >= least ? void(slot = std::gcd(slot, step)) : void(own += step * (extent - 1));
    for (const auto& [step, extent] : other.steps_)
      step >= least ? void(slot = std::gcd(slot, step)) : void(others += step * (extent - 1));
    const auto apart = static_cast<std::ptrdiff_t>(other.first_ - first_) % slot;
    const std::ptrdiff_t behind = apart < 0 ? apart + slot : apart;
    return behind >= own && behind + others <= slot;
  }

  std::uintptr_t first_ = 0, last_ = 0;
  std::ptrdiff_t item_ = 1;
  std::vector<std::pair<std::ptrdiff_t, std::int64_t>> steps_;  // bytes, and count
};

/// Arrays that a call reads or writes; a written array may share memory with no other.
class memory_of_call {
 public:
  /// Adds an input; an absent array has no memory.
  void reads(const char* name, const strided_array& array) {
    if (array) taken_.emplace_back(name, places(array));
  }
  void writes(const std::string& name, const strided_array& array) {
    const places here(array);
    for (const auto& [other, there] : taken_)
      if (!here.apart_from(there))
        refuse(std::string(name)
                   .append(" must not overlap ")
                   .append(other)
                   .append(" in memory, but it does"));
    taken_.emplace_back(name, here);
  }

 private:
  std::vector<std::pair<std::string, places>> taken_;
};

void check_output(std::string_view name, const output_array& into, const extents& shape) {
  if (into.array().shape() != shape)
    refuse(std::string(name) + " must have shape " + text_of(shape) + ", got " +
           text_of(into.array().shape()));
}

/// The wanted statistics, and memory for their rows.
statistic_set find_rows(const attention_outputs& into, const call_description& call,
                        memory_of_call& memory, row_outputs& places) {
  statistic_set wanted{};
  for_each_statistic(into, [&](statistic which, const output_array& rows) {
    if (!rows) return;
    const std::string name(name_of(which));
    check_output(name, rows, call.rows());
    const bool wide = call.arrays().compute == element_type::float64;
    const std::string_view element = is_count(which) ? "std::int64_t" : wide ? "double" : "float";
    if (rows.element() != element)
      refuse(name + " must hold " + std::string(element) + ", got " + std::string(rows.element()));
    check_row_major(name, rows.array());
    memory.writes(name, rows.array());
    places[which] = rows.array().place({}, {});
    wanted = wanted | statistic_set{which};
  });
  return wanted;
}

}  // namespace

void attend_into(call_description call, std::initializer_list<named_array> arguments,
                 const attention_outputs& into) {
  memory_of_call memory;
  for (const auto& [name, array] : arguments) memory.reads(name, *array);
  memory.reads("attn_mask", call.options().attn_mask.array());
  if (into.output) {
    const strided_array output = into.output.array().with_inner(2);
    if (!call.arrays().value) refuse("output needs a value, got none");
    check_output("output", into.output, joined(call.rows(), {call.value_dim()}));
    if (into.output.element() == "std::int64_t")
      refuse("output must hold a floating-point type, got std::int64_t");
    check_places("output", output);
    memory.writes("output", output);
    call.set_output(output);
  }
  row_outputs rows;
  const statistic_set wanted = find_rows(into, call, memory, rows);
  call.attend(rows, wanted);
}

}  // namespace attnscale
