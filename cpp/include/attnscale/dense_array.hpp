// SPDX-License-Identifier: BSD-3-Clause
//
// The arrays of xtensor that calls take and make.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <vector>

#include "attnscale/detail/strided_array.hpp"
#include "attnscale/detail/xtensor_compat.hpp"

namespace attnscale {

/// What the calls return and what options keep: an array whose rows are contiguous, as the core
/// writes and reads them, whatever XTENSOR_DEFAULT_LAYOUT is. It is xt::xarray<T> where that is not
/// defined.
template <class T>
using dense_array = xt::xarray<T, xt::layout_type::row_major>;

namespace detail {

/// What the calls take to look at: require_float_arrays() says what is wrong with it.
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

/// g++ 12 takes no pack through two aliases: structs.
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

/// The type of the arithmetic and of statistics: double if one of the arrays is, else float.
template <class... Arrays>
using compute_t = typename call_types<Arrays...>::compute;

/// The type of the output: that of the arrays if they share one, else that of the arithmetic.
template <class... Arrays>
using output_t = typename output_type<Arrays...>::type;

/// A new row-major array (leading..., inner...), not initialised.
template <class T>
dense_array<T> new_array(const extents& leading, std::initializer_list<std::int64_t> inner) {
  const extents shape = joined(leading, inner);
  count_entries(shape);
  return dense_array<T>::from_shape(std::vector<std::size_t>(shape.begin(), shape.end()));
}

/// Numbers in row-major order as an array of xtensor, and back.
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
