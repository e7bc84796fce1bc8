// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <type_traits>

#include "attnscale/dense_array.hpp"

namespace attnscale {

/// One number, or an array that broadcasts to the shape its option wants. Holds a copy. One of
/// integers takes no floating-point numbers, which would be cut.
template <class T>
class number_or_array {
 public:
  number_or_array() = default;  ///< not given

  template <class N>
  requires(std::is_arithmetic_v<N> && (std::floating_point<T> || std::integral<N>))
      number_or_array(N number)
      : values_(static_cast<T>(number)), given_(true) {}

  template <class E>
  requires(!std::is_arithmetic_v<E>) && std::derived_from<E, xt::xexpression<E>> &&
      (std::floating_point<T> ||
       std::integral<typename E::value_type>)number_or_array(const E& expression)
      : values_(xt::cast<T>(expression)),
  given_(true) {}

  explicit operator bool() const { return given_; }
  const dense_array<T>& values() const { return values_; }

 private:
  dense_array<T> values_;
  bool given_ = false;
};

}  // namespace attnscale
