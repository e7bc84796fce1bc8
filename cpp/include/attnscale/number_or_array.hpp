// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <type_traits>

#include "attnscale/dense_array.hpp"

namespace attnscale {

namespace detail {

/// A number that converts to T without truncation.
template <class N, class T>
concept number_for = std::is_arithmetic_v<N> && !std::same_as<N, bool> &&
                     (std::floating_point<T> || std::integral<N>);

}  // namespace detail

/// One number, or an array that broadcasts to the shape its option wants. Holds a copy. Integer
/// options take no floating-point numbers, which would be truncated, and no bool.
template <class T>
class number_or_array {
 public:
  number_or_array() = default;  ///< absent

  template <detail::number_for<T> N>
  number_or_array(N number) : rows_{{}, {static_cast<T>(number)}}, given_(true) {}

  template <class E>
  requires std::derived_from<E, xt::xexpression<E>> && detail::number_for<typename E::value_type, T>
  number_or_array(const E& expression) : rows_(detail::plain<T>(expression)), given_(true) {}

  explicit operator bool() const { return given_; }
  dense_array<T> values() const { return detail::dense<T>(rows_); }
  /// The numbers in row-major order.
  const row_array<T>& rows() const { return rows_; }

 private:
  row_array<T> rows_;
  bool given_ = false;
};

}  // namespace attnscale
