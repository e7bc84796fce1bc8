// SPDX-License-Identifier: BSD-3-Clause
//
// Arrays of any library, reduced to what the core needs: a pointer, extents and strides.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "attnscale/detail/export.hpp"
#include "attnscale/float16.hpp"
#include "attnscale/types.hpp"

namespace attnscale {

/// Extents or strides of an array, without allocation for the usual numbers of axes.
class extents {
 public:
  using value_type = std::int64_t;

  extents() = default;
  extents(std::size_t n, std::int64_t each) : size_(n) {
    if (n > few_.size()) many_.resize(n);
    std::fill_n(data(), n, each);
  }
  template <std::forward_iterator I>
  extents(I first, I last) : extents(static_cast<std::size_t>(std::distance(first, last)), 0) {
    for (std::int64_t* to = data(); first != last; ++first)
      *to++ = static_cast<std::int64_t>(*first);
  }
  extents(std::initializer_list<std::int64_t> all) : extents(all.begin(), all.end()) {}

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int64_t* data() { return many_.empty() ? few_.data() : many_.data(); }
  const std::int64_t* data() const { return many_.empty() ? few_.data() : many_.data(); }
  std::int64_t* begin() { return data(); }
  std::int64_t* end() { return data() + size_; }
  const std::int64_t* begin() const { return data(); }
  const std::int64_t* end() const { return data() + size_; }
  std::int64_t& operator[](std::size_t axis) { return data()[axis]; }
  const std::int64_t& operator[](std::size_t axis) const { return data()[axis]; }
  std::int64_t& back() { return data()[size_ - 1]; }
  const std::int64_t& back() const { return data()[size_ - 1]; }
  void push_back(std::int64_t each) { insert(size_, each); }
  void pop_back() { --size_; }
  void insert(std::size_t axis, std::int64_t each) {
    if (many_.empty() && size_ == few_.size()) many_.assign(begin(), end());
    if (!many_.empty())
      many_.resize(++size_);
    else
      ++size_;
    std::copy_backward(begin() + axis, end() - 1, end());
    (*this)[axis] = each;
  }
  void erase(std::size_t axis) {
    std::copy(begin() + axis + 1, end(), begin() + axis);
    --size_;
  }
  bool operator==(const extents& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }

 private:
  std::array<std::int64_t, 6> few_{};
  std::vector<std::int64_t> many_{};  // all of them, if they are more than a few
  std::size_t size_ = 0;
};

/// An xtensor container or view whose elements lie in memory at fixed strides: xarray, xtensor,
/// adapt, transpose, view and strided_view with ranges. Assign any other expression to one of these
/// first.
template <class A>
concept strided_container = requires(const A& a) {
  typename A::value_type;
  { a.data() } -> std::convertible_to<const typename A::value_type*>;
  { a.data_offset() } -> std::convertible_to<std::ptrdiff_t>;
  { a.dimension() } -> std::convertible_to<std::size_t>;
  a.shape();
  a.strides();
};

/// Query, key and value of a call: (..., heads, n, dim) of float or double.
template <class A>
concept float_array = strided_container<A> &&
    (std::same_as<typename A::value_type, float> || std::same_as<typename A::value_type, double>);

/// Query, key and value of exact attention: also 16-bit storage.
template <class A>
concept attention_array = float_array<A> ||
    (strided_container<A>&& half_width<typename A::value_type>);

namespace detail {

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

}  // namespace detail

/// Numbers per row in row-major order, which broadcast to (batch..., heads, n_queries). Only axes
/// along which the numbers differ have their full extent.
template <class Number>
struct row_array {
  std::vector<std::int64_t> extents{};
  std::vector<Number> numbers{};
};

/// Integers in the caller's memory; strides count elements.
struct integer_array {
  const std::int64_t* data = nullptr;
  std::span<const std::int64_t> extents{}, strides{};
  bool is_unsigned = false;  ///< the bits are those of std::uint64_t
};

/// Strides of a row-major array of this shape.
ATTNSCALE_EXPORT extents row_major(const extents& shape);

/// An array whose last `inner` axes belong to the core and whose other axes lead (..., heads). Axes
/// of extent 1 and missing axes have stride 0, so that they broadcast.
class ATTNSCALE_EXPORT strided_array {
 public:
  strided_array() = default;  ///< absent: null, no axes

  template <strided_container A>
  strided_array(const A& array, int inner)
      : strided_array(array.data() + array.data_offset(),
                      detail::element_type_of<typename A::value_type>,
                      sizeof(typename A::value_type), {array.shape().begin(), array.shape().end()},
                      {array.strides().begin(), array.strides().end()}, inner) {
    if (!data_) check_no_elements();
  }

  /// An array in the caller's memory; strides in elements.
  strided_array(const void* data, element_type type, std::ptrdiff_t item_size, extents shape,
                extents strides, int inner)
      : data_(static_cast<const char*>(data)),
        item_size_(item_size),
        type_(type),
        shape_(std::move(shape)),
        strides_(std::move(strides)),
        inner_(inner),
        present_(true) {}

  /// Numbers in row-major order, which have to outlive the array.
  template <class Number>
  strided_array(const row_array<Number>& rows, int inner)
      : strided_array(rows.numbers.data(), detail::element_type_of<Number>, sizeof(Number),
                      {rows.extents.begin(), rows.extents.end()}, {}, inner) {
    strides_ = row_major(shape_);
  }

  explicit operator bool() const { return present_; }
  const extents& shape() const { return shape_; }
  std::ptrdiff_t item_size() const { return item_size_; }
  int dimension() const { return static_cast<int>(shape_.size()); }
  int n_leading() const { return dimension() - inner_; }
  /// Leading axes (..., heads): all but the core's.
  extents leading() const { return {shape_.begin(), shape_.end() - inner_}; }

  /// Extent and stride (in elements) of an axis, counted from the last, which is 1.
  std::int64_t extent(int from_last) const {
    return from_last > dimension() ? 1 : shape_[at_axis(from_last)];
  }
  std::ptrdiff_t stride(int from_last) const {
    return extent(from_last) <= 1 ? 0 : static_cast<std::ptrdiff_t>(strides_[at_axis(from_last)]);
  }
  std::int64_t leading_extent(int from_last) const { return extent(inner_ + from_last); }

  /// This memory with another number of inner axes.
  strided_array with_inner(int inner) const;
  /// The last two axes swapped.
  strided_array transposed() const;
  /// Rows [first, last) of the second to last axis.
  strided_array rows(std::int64_t first, std::int64_t last) const;
  /// One more axis of extent 1 before the last two.
  strided_array with_axis_of_heads() const;
  /// Integers of an array of std::int64_t, which has to outlive the result.
  integer_array integers() const;

  matrix_layout layout() const {
    if (!present_) return {};
    return {type_, stride(2), stride(1)};
  }

  /// Addresses of the first byte in memory and of the one after the last; equal without elements.
  std::pair<std::uintptr_t, std::uintptr_t> memory() const;

  /// Start of the entry at a leading index of the call. An axis shorter than the call's (heads of
  /// key and value under grouped queries) serves consecutive indices.
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

  /// Start of an entry of a writable array.
  void* place(const extents& index, const extents& call_shape) const {
    return const_cast<void*>(at(index, call_shape));
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

/// Number of entries of a shape; std::bad_alloc if no memory can hold them.
ATTNSCALE_EXPORT std::int64_t count_entries(const extents& shape);

/// A shape with more axes appended.
ATTNSCALE_EXPORT extents joined(extents shape, std::initializer_list<std::int64_t> inner);

/// Refuses an array that does not broadcast to `shape`; `axes` names the axes of that shape.
ATTNSCALE_EXPORT void check_broadcast(const char* name, const strided_array& array,
                                      const extents& shape, const char* axes);

/// Numbers broadcast to a full shape.
ATTNSCALE_EXPORT row_array<double> broadcast_rows(const row_array<double>& rows,
                                                  const extents& shape);

/// Sums over heads to the shape of the array that they share: row-major arrays (leading..., inner).
ATTNSCALE_EXPORT row_array<double> sum_heads(const strided_array& heads, const extents& leading,
                                             const extents& shape);

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

}  // namespace attnscale
