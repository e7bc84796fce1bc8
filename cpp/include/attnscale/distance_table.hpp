// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

#include "attnscale/dense_array.hpp"

namespace attnscale {

/// Numbers by the distance between query and key, counted from the key that the query is aligned
/// with (attention_options::causal). Either an array, whose entry t = 0, 1, ... of the last axis
/// serves both sides and whose other axes broadcast to (..., heads); or a function of the signed
/// distances, query less key, of shape (..., n), that returns as many numbers on its last axis.
/// Holds a copy.
class distance_table {
 public:
  using distances = dense_array<std::int64_t>;

  distance_table() = default;  ///< absent

  template <class E>
  requires std::derived_from<E, xt::xexpression<E>> &&
      std::is_arithmetic_v<typename E::value_type> &&
      (!std::same_as<typename E::value_type, bool>)distance_table(const E& table)
      : values_(detail::plain<double>(table)), given_(true) {}

  template <class F>
  requires(!std::derived_from<F, xt::xexpression<F>> && std::invocable<const F&, const distances&>)
      distance_table(F function)
      : function_([function = std::move(function)](const row_array<std::int64_t>& steps) {
          return detail::plain<double>(function(detail::dense<std::int64_t>(steps)));
        }),
        given_(true) {}

  explicit operator bool() const { return given_; }
  bool is_function() const { return static_cast<bool>(function_); }
  /// The function's values at these distances, or the array.
  row_array<double> at(const row_array<std::int64_t>& steps) const {
    return function_ ? function_(steps) : values_;
  }

 private:
  row_array<double> values_;
  std::function<row_array<double>(const row_array<std::int64_t>&)> function_;
  bool given_ = false;
};

}  // namespace attnscale
