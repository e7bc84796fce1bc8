// SPDX-License-Identifier: BSD-3-Clause
//
// The xtensor arrays that calls take and return.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <vector>

#include "attnscale/detail/strided_array.hpp"
#include "attnscale/detail/xtensor_compat.hpp"

namespace attnscale {

/// Array of results and options: contiguous rows, as the core writes and reads them, whatever
/// XTENSOR_DEFAULT_LAYOUT is. It is xt::xarray<T> if that macro is not defined.
template <class T>
using dense_array = xt::xarray<T, xt::layout_type::row_major>;

namespace detail {

/// Array arguments; require_float_arrays() says what is wrong with one.
template <class A>
concept array_argument = strided_container<A> || std::derived_from<A, xt::xexpression<A>>;

template <class A>
consteval void require_float_array() {
  static_assert(
      strided_container<A>,
      "attnscale reads arrays in place: give it a container or a view with strides, and an "
      "expression as the array that it is assigned to: xt::xarray<float> x = 2 * q");
  if constexpr (strided_container<A>)
    static_assert(float_array<A>, "attnscale takes arrays of float or double");
}

template <class... Arrays>
consteval void require_float_arrays() {
  (require_float_array<Arrays>(), ...);
}

template <class A>
consteval void require_attention_array() {
  if constexpr (!strided_container<A>)
    require_float_array<A>();
  else
    static_assert(attention_array<A>,
                  "attnscale takes arrays of float, double, attnscale::float16 or "
                  "attnscale::bfloat16");
}

template <class... Arrays>
consteval void require_attention_arrays() {
  (require_attention_array<Arrays>(), ...);
}

/// Structs, because g++ 12 takes no pack through two aliases.
template <class... Arrays>
struct call_types {
  static constexpr bool wide = (std::is_same_v<typename Arrays::value_type, double> || ...);
  using compute = std::conditional_t<wide, double, float>;
};
template <class A, class... Others>
struct output_type {
  using shared = typename A::value_type;
  static constexpr bool same = (std::is_same_v<shared, typename Others::value_type> && ...);
  using type = std::conditional_t<same, shared, typename call_types<A, Others...>::compute>;
};

/// Compute type, also of statistics: double if one of the arrays is, else float.
template <class... Arrays>
using compute_t = typename call_types<Arrays...>::compute;

/// Type of the output: that of the arrays if they share one, else the compute type.
template <class... Arrays>
using output_t = typename output_type<Arrays...>::type;

/// A new row-major array (leading..., inner...), not initialised.
template <class T>
dense_array<T> new_array(const extents& leading, std::initializer_list<std::int64_t> inner) {
  const extents shape = joined(leading, inner);
  count_entries(shape);
  return dense_array<T>::from_shape(std::vector<std::size_t>(shape.begin(), shape.end()));
}

/// Conversions between row-major numbers and an xtensor array.
template <class T, class Number>
dense_array<T> dense(const row_array<Number>& rows) {
  auto array = new_array<T>({rows.extents.begin(), rows.extents.end()}, {});
  std::copy(rows.numbers.begin(), rows.numbers.end(), array.data());
  return array;
}

template <class T, class E>
row_array<T> plain(const E& expression) {
  const dense_array<T> array = xt::cast<T>(expression);
  return {{array.shape().begin(), array.shape().end()},
          {array.data(), array.data() + array.size()}};
}

}  // namespace detail
}  // namespace attnscale
