// SPDX-License-Identifier: BSD-3-Clause
//
// Attention whose results are written to memory of the caller: containers, adaptors of pointers and
// views, in place, with the bits of attention_statistics().
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "attnscale/attention.hpp"

namespace attnscale {

namespace detail {

/// A container that owns its elements; views and adaptors refer to those of others.
template <class A>
inline constexpr bool owns_elements = false;
template <class E, xt::layout_type L, class S, class Tag>
inline constexpr bool owns_elements<xt::xarray_container<E, L, S, Tag>> = true;
template <class E, std::size_t N, xt::layout_type L, class Tag>
inline constexpr bool owns_elements<xt::xtensor_container<E, N, L, Tag>> = true;

}  // namespace detail

/// A container or view whose elements attention_into() overwrites. It is referred to, not copied,
/// and has to be there during the call; xt::adapt makes one of a pointer.
class output_array {
 public:
  output_array() = default;  ///< not asked for

  /// Results that go into a container without a name are lost.
  template <class A>
  requires detail::owns_elements<A> output_array(A&& temporary)
  = delete;

  template <class A>
  requires strided_container<std::remove_cvref_t<A>> &&
      (!detail::owns_elements<A>)output_array(A&& array)
      : array_(array, 0) {
    using element = typename std::remove_cvref_t<A>::value_type;
    static_assert(!std::is_const_v<std::remove_pointer_t<decltype(array.data())>>,
                  "attention_into overwrites its outputs: give it containers and views that are "
                  "not const");
    static_assert(half_width<element> || std::same_as<element, float> ||
                      std::same_as<element, double> || std::same_as<element, std::int64_t>,
                  "attention_into writes float, double, attnscale::float16, attnscale::bfloat16 "
                  "and counts as std::int64_t");
    element_ = std::same_as<element, std::int64_t> ? "std::int64_t"
               : std::same_as<element, float>      ? "float"
               : std::same_as<element, double>     ? "double"
               : std::same_as<element, float16>    ? "float16"
                                                   : "bfloat16";
  }

  explicit operator bool() const { return static_cast<bool>(array_); }
  /// The name of the type of its elements.
  std::string_view element() const { return element_; }
  const detail::strided_array& array() const { return array_; }

 private:
  detail::strided_array array_;
  std::string_view element_;
};

/// Where results go, those that are wanted: {.output = out, .entropy = rows}. Shapes are those of
/// attention_statistics(). The output may have any strides and any of the types of arguments, to
/// which it is rounded; statistics are row-major, of the type of the arithmetic (double if any
/// argument is, else float), and counts std::int64_t.
struct attention_outputs {
  output_array output{};  ///< (..., heads, n_queries, value_dim)
  output_array lse{}, entropy{}, max_score{}, mean_score{}, score_variance{}, concentration{};
  output_array n_visible{}, argmax{};
  output_array max_weight{}, sink_weight{};
  output_array support{};
  output_array renyi2{}, min_score{};
};

namespace detail {

/// An array that is written has a place in memory for each of its elements: in the order of their
/// strides, every axis steps over all that the ones before it reach.
inline void check_places(const std::string& name, const strided_array& array) {
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
      refuse(name + " must have a place for each of its elements, got strides " + text_of(strides));
    reach += (extent - 1) * stride;
  }
}

/// The core writes statistics one behind the other.
inline void check_row_major(const std::string& name, const strided_array& array) {
  std::int64_t expected = 1;
  for (int axis = 1; axis <= array.dimension(); ++axis) {
    if (array.extent(axis) > 1 && array.stride(axis) != expected)
      refuse(name + " must be row-major without gaps, got the stride " +
             text_of(array.stride(axis)) + " where " + text_of(expected) + " is needed");
    expected *= array.extent(axis);
  }
}

/// Where an array's elements lie in memory.
class places {
 public:
  explicit places(const strided_array& array) {
    std::tie(first_, last_) = array.memory();
    for (int axis = 1; axis <= array.dimension(); ++axis)
      if (array.stride(axis) != 0)
        steps_.emplace_back(std::abs(array.stride(axis)) * array.item_size(), array.extent(axis));
    item_ = array.item_size();
  }

  /// Whether none of them is one of the other's: the arrays lie one behind the other, or each in
  /// its own part of slots that both repeat.
  bool apart_from(const places& other) const {
    if (last_ <= other.first_ || other.last_ <= first_) return true;
    for (const places* of : {this, &other})
      for (const auto& step : of->steps_)
        if (in_slots(other, step.first)) return true;
    return false;
  }

 private:
  /// Steps of at least `least` bytes repeat a slot; shorter ones have to stay within it.
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
  std::vector<std::pair<std::ptrdiff_t, std::int64_t>> steps_;  // bytes, and how many
};

/// Arrays that a call reads or writes: what it writes may share no memory with any other.
class memory_of_call {
 public:
  /// An array that is absent has none.
  void reads(const char* name, const strided_array& array) {
    if (array) taken_.emplace_back(name, places(array));
  }
  void writes(const std::string& name, const strided_array& array) {
    const places here(array);
    for (const auto& [other, there] : taken_)
      if (!here.apart_from(there))
        refuse(name + " must not overlap " + other + " in memory, but it does");
    taken_.emplace_back(name, here);
  }

 private:
  std::vector<std::pair<std::string, places>> taken_;
};

inline void check_output(std::string_view name, const output_array& into, const extents& shape) {
  if (into.array().shape() != shape)
    refuse(std::string(name) + " must have shape " + text_of(shape) + ", got " +
           text_of(into.array().shape()));
}

/// Points a problem at the statistics that are wanted.
inline statistic_set write_statistics_to(const attention_outputs& into,
                                         const call_description& call, memory_of_call& memory,
                                         attention_problem& problem) {
  statistic_set wanted{};
  for_each_statistic(into, [&](statistic which, const output_array& rows) {
    if (!rows) return;
    const std::string name(name_of(which));
    check_output(name, rows, joined(call.leading(), {call.n_queries()}));
    const std::string_view element = is_count(which)                            ? "std::int64_t"
                                     : problem.compute == element_type::float64 ? "double"
                                                                                : "float";
    if (rows.element() != element)
      refuse(name + " must hold " + std::string(element) + ", got " + std::string(rows.element()));
    check_row_major(name, rows.array());
    memory.writes(name, rows.array());
    problem.statistics[which] = const_cast<void*>(rows.array().at({}, {}));
    wanted = wanted | statistic_set{which};
  });
  return wanted;
}

inline void attend_into(const call_description& call, const attention_options& options,
                        const attention_outputs& into, memory_of_call memory) {
  memory.reads("attn_mask", options.attn_mask.array());
  attention_problem problem;
  call.fill(problem);
  if (into.output) {
    const strided_array output = into.output.array().with_inner(2);
    if (!call.value()) refuse("output needs a value, got none");
    check_output("output", into.output,
                 joined(call.leading(), {call.n_queries(), call.value_dim()}));
    if (into.output.element() == "std::int64_t")
      refuse("output must hold a floating-point type, got std::int64_t");
    check_places("output", output);
    memory.writes("output", output);
    write_to(output, call, problem);
  }
  call.fill_rule(problem, write_statistics_to(into, call, memory, problem));
  run(problem, call.how());
}

}  // namespace detail

/// attention_statistics() into the memory of `into`, where results are written once and not copied.
/// What is written may not overlap an argument, a mask in std::cref, or another output; arrays that
/// are interleaved, each in its own part of the same rows, do not. What does
/// not fit is refused before anything is written; a call that is interrupted leaves the outputs
/// with some of their rows.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V>
void attention_into(const Q& query, const K& key, const V& value, const attention_outputs& into,
                    const attention_options& options = {}) {
  detail::require_attention_arrays<Q, K, V>();
  const detail::strided_array q(query, 2), k(key, 2), v(value, 2);
  detail::memory_of_call memory;
  memory.reads("query", q);
  memory.reads("key", k);
  memory.reads("value", v);
  detail::attend_into({q, k, v, options}, options, into, std::move(memory));
}

/// The same without a value, for statistics alone.
template <detail::array_argument Q, detail::array_argument K>
void attention_into(const Q& query, const K& key, const attention_outputs& into,
                    const attention_options& options = {}) {
  detail::require_attention_arrays<Q, K>();
  const detail::strided_array q(query, 2), k(key, 2);
  detail::memory_of_call memory;
  memory.reads("query", q);
  memory.reads("key", k);
  detail::attend_into({q, k, {}, options}, options, into, std::move(memory));
}

}  // namespace attnscale
