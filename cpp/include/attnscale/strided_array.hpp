// SPDX-License-Identifier: BSD-3-Clause
//
// xtensor containers and views, stripped to what the core wants: a pointer, extents and strides.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "attnscale/dense_array.hpp"
#include "attnscale/float16.hpp"
#include "attnscale/intervals.hpp"
#include "attnscale/refuse.hpp"
#include "attnscale/types.hpp"
#include "attnscale/xtensor_compat.hpp"

namespace attnscale {

/// An xtensor container or view whose elements lie in memory at fixed strides: xarray, xtensor,
/// adapt, transpose, view and strided_view with ranges. Another expression becomes one by being
/// assigned to one.
template <class A>
concept strided_container = requires(const A& a) {
  typename A::value_type;
  { a.data() } -> std::convertible_to<const typename A::value_type*>;
  { a.data_offset() } -> std::convertible_to<std::ptrdiff_t>;
  { a.dimension() } -> std::convertible_to<std::size_t>;
  a.shape();
  a.strides();
};

/// What query, key and value may be: (..., heads, n, dim) of float or double.
template <class A>
concept float_array = strided_container<A> &&
    (std::same_as<typename A::value_type, float> || std::same_as<typename A::value_type, double>);

/// What query, key and value of exact attention may be: also 16-bit storage.
template <class A>
concept attention_array = float_array<A> ||
    (strided_container<A>&& half_width<typename A::value_type>);

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

/// Extents or strides; as many as most arrays have axes need no allocation.
using extents = xt::svector<std::int64_t, 6>;

template <class T>
inline constexpr element_type element_type_of =
    std::is_same_v<T, double>     ? element_type::float64
    : std::is_same_v<T, float16>  ? element_type::float16
    : std::is_same_v<T, bfloat16> ? element_type::bfloat16
                                  : element_type::float32;

/// The number at an index of an array of this type.
inline double number_at(const void* data, element_type type, std::ptrdiff_t index) {
  switch (type) {
    case element_type::float64:
      return static_cast<const double*>(data)[index];
    case element_type::float16:
      return static_cast<const float16*>(data)[index];
    case element_type::bfloat16:
      return static_cast<const bfloat16*>(data)[index];
    case element_type::float32:
      break;
  }
  return static_cast<const float*>(data)[index];
}

/// An array whose last `inner` axes are the core's and whose other axes lead (..., heads). Axes
/// of extent 1, and axes that are not there, have stride 0, so that they broadcast.
class strided_array {
 public:
  strided_array() = default;  ///< absent: null, no axes

  template <strided_container A>
  strided_array(const A& array, int inner) : inner_(inner) {
    data_ = reinterpret_cast<const char*>(array.data() + array.data_offset());
    item_size_ = sizeof(typename A::value_type);
    type_ = element_type_of<typename A::value_type>;
    shape_.assign(array.shape().begin(), array.shape().end());
    strides_.assign(array.strides().begin(), array.strides().end());
    present_ = true;
    if (!data_) check_no_elements();
  }

  /// Memory that the caller keeps; strides in elements.
  strided_array(const void* data, element_type type, std::ptrdiff_t item_size, extents shape,
                extents strides, int inner)
      : data_(static_cast<const char*>(data)),
        item_size_(item_size),
        type_(type),
        shape_(std::move(shape)),
        strides_(std::move(strides)),
        inner_(inner),
        present_(true) {}

  explicit operator bool() const { return present_; }
  const extents& shape() const { return shape_; }
  std::ptrdiff_t item_size() const { return item_size_; }
  int dimension() const { return static_cast<int>(shape_.size()); }
  int n_leading() const { return dimension() - inner_; }

  /// Extent and stride (in elements) of an axis counted from the last one, which is 1.
  std::int64_t extent(int from_last) const {
    return from_last > dimension() ? 1 : shape_[at_axis(from_last)];
  }
  std::ptrdiff_t stride(int from_last) const {
    return extent(from_last) <= 1 ? 0 : strides_[at_axis(from_last)];
  }
  /// The same memory, with another number of axes that do not lead.
  strided_array with_inner(int inner) const {
    strided_array other = *this;
    other.inner_ = inner;
    return other;
  }
  std::int64_t leading_extent(int from_last) const { return extent(inner_ + from_last); }

  /// The same array with its last two axes swapped.
  strided_array transposed() const {
    strided_array swapped = *this;
    std::swap(swapped.shape_[at_axis(1)], swapped.shape_[at_axis(2)]);
    std::swap(swapped.strides_[at_axis(1)], swapped.strides_[at_axis(2)]);
    return swapped;
  }

  /// Rows [first, last) of the axis before the last one.
  strided_array rows(std::int64_t first, std::int64_t last) const {
    strided_array part = *this;
    if (extent(2) > 1) part.data_ += first * stride(2) * item_size_;
    part.shape_[at_axis(2)] = last - first;
    return part;
  }

  /// The same array with one more axis before the last two, of extent 1.
  strided_array with_axis_of_heads() const {
    strided_array wide = *this;
    wide.shape_.insert(wide.shape_.end() - 2, 1);
    wide.strides_.insert(wide.strides_.end() - 2, 0);
    return wide;
  }

  /// Of an array of std::int64_t; it has to outlive the result.
  integer_array integers() const {
    return {reinterpret_cast<const std::int64_t*>(data_),
            {shape_.data(), shape_.size()},
            {strides_.data(), strides_.size()}};
  }

  matrix_layout layout() const {
    if (!present_) return {};
    return {type_, stride(2), stride(1)};
  }

  /// The address of the first of its bytes in memory and the one behind the last: the same twice
  /// without elements.
  std::pair<std::uintptr_t, std::uintptr_t> memory() const {
    std::ptrdiff_t first = 0, last = 0;
    for (int axis = 1; axis <= dimension(); ++axis) {
      if (extent(axis) == 0) return {};
      const std::ptrdiff_t steps = (extent(axis) - 1) * stride(axis);
      (steps < 0 ? first : last) += steps;
    }
    const auto address = [&](std::ptrdiff_t element) {
      return reinterpret_cast<std::uintptr_t>(data_ + element * item_size_);
    };
    return {address(first), address(last + 1)};
  }

  /// Where the entry of a leading index of the call begins. An axis that is shorter than the
  /// call's (heads of key and value under grouped queries) serves consecutive indices.
  const void* at(const extents& index, const extents& call_shape) const {
    if (!present_) return nullptr;
    std::ptrdiff_t elements = 0;
    const int n = static_cast<int>(call_shape.size());
    for (int axis = 0; axis < n; ++axis) {
      const std::int64_t entries = leading_extent(n - axis);
      if (entries <= 1) continue;
      const auto a = static_cast<std::size_t>(axis);
      elements += index[a] / (call_shape[a] / entries) * stride(inner_ + n - axis);
    }
    return data_ + elements * item_size_;
  }

 private:
  std::size_t at_axis(int from_last) const { return shape_.size() - std::size_t(from_last); }

  void check_no_elements() const;

  const char* data_ = nullptr;
  std::ptrdiff_t item_size_ = 0;
  element_type type_ = element_type::float32;
  extents shape_;
  extents strides_;
  int inner_ = 0;
  bool present_ = false;
};

inline std::string text_of(const extents& shape) {
  return text_of(std::span(shape.data(), shape.size()));
}

inline void strided_array::check_no_elements() const {
  for (const std::int64_t extent : shape_)
    if (extent == 0) return;
  refuse("an array of shape " + text_of(shape_) + " must have memory, got a null pointer");
}

inline std::int64_t count_entries(const extents& shape) {
  return entries_of(std::span(shape.data(), shape.size()));
}

/// Calls visit(index) for every index of a shape, in C order.
template <class Visit>
void for_each_index(const extents& shape, Visit visit) {
  extents index(shape.size(), 0);
  for (std::int64_t left = count_entries(shape); left > 0; --left) {
    visit(index);
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      if (++index[axis] < shape[axis]) break;
      index[axis] = 0;
    }
  }
}

inline extents row_major(const extents& shape) {
  extents strides(shape.size(), 1);
  for (std::size_t axis = shape.size(); axis-- > 1;)
    strides[axis - 1] = strides[axis] * shape[axis];
  return strides;
}

/// Numbers of rows (..., heads, n_queries), which have to outlive it.
template <class Number>
strided_array strided(const row_array<Number>& rows) {
  const extents shape(rows.extents.begin(), rows.extents.end());
  return {rows.numbers.data(), element_type::float64, sizeof(Number), shape, row_major(shape), 1};
}

inline extents joined(extents shape, std::initializer_list<std::int64_t> inner) {
  shape.insert(shape.end(), inner);
  return shape;
}

/// The batch axes of (..., heads).
inline extents batch_of(const extents& leading) {
  return {leading.begin(), leading.empty() ? leading.end() : leading.end() - 1};
}

/// A new row-major array (leading..., inner...), not initialised.
template <class T>
dense_array<T> new_array(const extents& leading, std::initializer_list<std::int64_t> inner) {
  const extents shape = joined(leading, inner);
  count_entries(shape);
  return dense_array<T>::from_shape(std::vector<std::size_t>(shape.begin(), shape.end()));
}

}  // namespace detail
}  // namespace attnscale
