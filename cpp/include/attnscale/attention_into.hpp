// SPDX-License-Identifier: BSD-3-Clause
//
// Attention that writes its results to the caller's memory: containers, adaptors of pointers and
// views, in place, with the same bits as attention_statistics().
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <type_traits>

#include "attnscale/attention.hpp"

namespace attnscale {

namespace detail {

/// Type that owns its elements; views and adaptors refer to elements of others.
template <class A>
inline constexpr bool owns_elements = false;
template <class E, xt::layout_type L, class S, class Tag>
inline constexpr bool owns_elements<xt::xarray_container<E, L, S, Tag>> = true;
template <class E, std::size_t N, xt::layout_type L, class Tag>
inline constexpr bool owns_elements<xt::xtensor_container<E, N, L, Tag>> = true;

}  // namespace detail

/// A container or view that attention_into() overwrites. It is referred to, not copied, and has to
/// outlive the call; xt::adapt makes one from a pointer.
class output_array {
 public:
  output_array() = default;  ///< unused

  // NOLINTBEGIN(bugprone-forwarding-reference-overload): an output_array is not a container
  /// Results in a temporary container would be lost.
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
  // NOLINTEND(bugprone-forwarding-reference-overload)

  explicit operator bool() const { return static_cast<bool>(array_); }
  /// Name of the element type.
  std::string_view element() const { return element_; }
  const strided_array& array() const { return array_; }

 private:
  strided_array array_;
  std::string_view element_;
};

/// Memory for the wanted results: {.output = out, .entropy = rows}. Shapes are those of
/// attention_statistics(). The output may have any strides and any argument type, to which it is
/// rounded; statistics are row-major, of the compute type (double if any argument is, else float),
/// and counts are std::int64_t.
struct attention_outputs {
  output_array output{};  ///< (..., heads, n_queries, value_dim)
  output_array lse{}, entropy{}, max_score{}, mean_score{}, score_variance{}, concentration{};
  output_array n_visible{}, argmax{};
  output_array max_weight{}, sink_weight{};
  output_array support{};
  output_array renyi2{}, min_score{};
};

/// Writes the results of a call; they share no memory with the arrays given to it.
ATTNSCALE_EXPORT void attend_into(call_description call,
                                  std::initializer_list<named_array> arguments,
                                  const attention_outputs& into);

/// attention_statistics() into the memory of `into`, without copies. An output may not overlap an
/// argument, a mask in std::cref, or another output; interleaved arrays, each in its own part of
/// the same rows, do not overlap. Arguments that do not fit are refused before anything is written;
/// an interrupted call leaves some rows written.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V>
void attention_into(const Q& query, const K& key, const V& value, const attention_outputs& into,
                    const attention_options& options = {}) {
  detail::require_attention_arrays<Q, K, V>();
  const strided_array q(query, 2), k(key, 2), v(value, 2);
  attend_into({q, k, v, options}, {{"query", &q}, {"key", &k}, {"value", &v}}, into);
}

/// Statistics into the memory of `into`, without a value.
template <detail::array_argument Q, detail::array_argument K>
void attention_into(const Q& query, const K& key, const attention_outputs& into,
                    const attention_options& options = {}) {
  detail::require_attention_arrays<Q, K>();
  const strided_array q(query, 2), k(key, 2);
  attend_into({q, k, {}, options}, {{"query", &q}, {"key", &k}}, into);
}

}  // namespace attnscale
