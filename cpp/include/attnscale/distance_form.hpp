// SPDX-License-Identifier: BSD-3-Clause
//
// attention_options::distance_scale and distance_bias, and laws of the distance: tables that the
// core reads as matrices over (query, key), and the way back of their gradients. A table of
// n_queries + n_keys - 1 numbers with the strides -1 and 1 is such a matrix, so that a distance
// costs no memory of n_queries * n_keys.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "attnscale/distance_table.hpp"
#include "attnscale/intervals.hpp"
#include "attnscale/options.hpp"
#include "attnscale/refuse.hpp"
#include "attnscale/strided_array.hpp"

namespace attnscale::detail {

/// The law of the options, if its n is the distance of query and key.
inline const scale_law* law_of_distance(const attention_options& options) {
  const std::optional<scale_law>& law = options.scale.law();
  return law && law->meaning() == n_means::query_key_distance ? &*law : nullptr;
}

inline extents shape_of(const dense_array<double>& array) {
  return {array.shape().begin(), array.shape().end()};
}

/// Refuses a table whose axes but the last do not broadcast to (..., heads).
inline void check_table_leading(const char* name, const extents& table, const extents& leading) {
  const extents seen(table.begin(), table.end() - 1);
  bool fits = seen.size() <= leading.size();
  for (std::size_t axis = 1; fits && axis <= seen.size(); ++axis)
    fits =
        seen[seen.size() - axis] == 1 || seen[seen.size() - axis] == leading[leading.size() - axis];
  if (!fits)
    refuse(std::string(name) + " must broadcast to (..., heads) = " + text_of(leading) +
           " before its last axis, got " + text_of(seen));
}

/// Numbers of each distance in the type of the arithmetic, as a matrix over (query, key).
struct table_matrix {
  dense_array<double> wide{};  ///< (..., n_distances); this one or the next
  dense_array<float> narrow{};
  strided_array matrix{};  ///< (..., n_queries, n_keys); absent: no table, or no pair

  dense_array<double> numbers() const {
    if (matrix.layout().type == element_type::float64) return wide;
    return xt::cast<double>(narrow);
  }
};

/// Tables of a call at each of its distances, and what they become for the core.
class distance_form {
 public:
  distance_form() = default;                     ///< no tables
  distance_form(const distance_form&) = delete;  // its matrices refer to its tables
  distance_form& operator=(const distance_form&) = delete;

  /// leading: (..., heads) of the call; pairs: (n_queries, n_keys); head_dim is at least 1.
  void read(const attention_options& options, const key_intervals& intervals,
            const extents& leading, const extents& pairs, std::int64_t head_dim,
            element_type compute) {
    leading_ = leading;
    n_queries_ = pairs[0];
    n_keys_ = pairs[1];
    compute_ = compute;
    const scale_law* law = law_of_distance(options);
    if (!law && !options.distance_scale && !options.distance_bias) return;
    const row_array<std::int64_t> distances = intervals.distances();
    distances_ = new_array<std::int64_t>({distances.extents.begin(), distances.extents.end()}, {});
    std::copy(distances.numbers.begin(), distances.numbers.end(), distances_.begin());
    reach_ = intervals.reach();
    std::optional<dense_array<double>> scale = read_table("distance_scale", options.distance_scale);
    std::optional<dense_array<double>> bias = read_table("distance_bias", options.distance_bias);
    if (law) add_law(*law, head_dim, scale, bias);
    distance_scale_ = as_matrix(scale);
    distance_bias_ = as_matrix(bias);
  }

  score_tables<matrix_layout> layouts() const {
    return {distance_scale_.matrix.layout(), distance_bias_.matrix.layout()};
  }
  score_tables<const void*> at(const extents& index) const {
    return {distance_scale_.matrix.at(index, leading_), distance_bias_.matrix.at(index, leading_)};
  }

  /// Zeros in place of the tables, for their gradients to be added to.
  score_tables<table_matrix> zeros(bool of_distance_scale, bool of_distance_bias) const {
    score_tables<table_matrix> result;
    const auto zeros_like = [&](const table_matrix& table) {
      dense_array<double> numbers = table.numbers();
      numbers.fill(0);
      return new_matrix(std::move(numbers));
    };
    if (of_distance_scale && distance_scale_.matrix)
      result.distance_scale = zeros_like(distance_scale_);
    if (of_distance_bias && distance_bias_.matrix)
      result.distance_bias = zeros_like(distance_bias_);
    return result;
  }

  /// From the gradient at each distance to that of the table; 0 where there are no pairs.
  dense_array<double> gradient_of(const distance_table& table, const table_matrix& of_distances,
                                  bool is_scale) const {
    dense_array<double> found = table.at(distances_);
    found.fill(0);
    if (!of_distances.matrix) return found;
    const dense_array<double> gradient = of_distances.numbers();
    const bool by_law = is_scale && has_law_;
    const strided_array target(found, 1), law(of_law_, 1), steps(distances_, 1);
    const extents shape = shape_of(gradient), lead(shape.begin(), shape.end() - 1);
    const std::int64_t last = std::max<std::int64_t>(target.extent(1) - 1, 0);
    const double* from = gradient.data();
    for_each_index(lead, [&](const extents& index) {
      auto* const to = static_cast<double*>(const_cast<void*>(target.at(index, lead)));
      const auto* step = static_cast<const std::int64_t*>(steps.at(index, lead));
      const auto* factor = by_law ? static_cast<const double*>(law.at(index, lead)) : nullptr;
      for (std::int64_t k = 0; k < shape.back(); ++k, ++from) {
        const std::int64_t t = table.is_function() ? k : std::min(std::abs(step[k]), last);
        if (target.extent(1) > 0) to[t] += factor ? *from * factor[k] : *from;
      }
    });
    return found;
  }

 private:
  std::optional<dense_array<double>> read_table(const char* name,
                                                const distance_table& table) const {
    if (!table) return std::nullopt;
    dense_array<double> values = table.at(distances_);
    const auto n = static_cast<std::int64_t>(distances_.shape().back());
    const strided_array given(values, 1);
    if (table.is_function()) {
      if (given.dimension() == 0 || given.shape().back() != n)
        refuse(std::string(name) + " must return one number for each of " + text_of(n) +
               " distances on its last axis, got shape " + text_of(given.shape()));
    } else if (given.dimension() == 0 || given.shape().back() <= reach_) {
      refuse(std::string(name) + " must have an entry for each distance 0 ... " + text_of(reach_) +
             " on its last axis, got shape " + text_of(given.shape()));
    }
    check_table_leading(name, given.shape(), leading_);
    if (!table.is_function()) values = look_up(given);
    for (const double each : values)
      if (!std::isfinite(each))
        refuse(std::string(name) +
               " must be finite, got NaN or infinity; attn_mask and window hide keys");
    return values;
  }

  /// Entry t of the last axis at the distances t and -t.
  dense_array<double> look_up(const strided_array& table) const {
    const strided_array steps(distances_, 1);
    extents lead(static_cast<std::size_t>(std::max(table.n_leading(), steps.n_leading())), 1);
    for (std::size_t axis = 1; axis <= lead.size(); ++axis) {
      const std::int64_t here = table.leading_extent(static_cast<int>(axis));
      lead[lead.size() - axis] = here == 1 ? steps.leading_extent(static_cast<int>(axis)) : here;
    }
    const auto n = static_cast<std::int64_t>(distances_.shape().back());
    auto values = new_array<double>(lead, {n});
    double* to = values.data();
    for_each_index(lead, [&](const extents& index) {
      const auto* entry = static_cast<const double*>(table.at(index, lead));
      const auto* step = static_cast<const std::int64_t*>(steps.at(index, lead));
      for (std::int64_t k = 0; k < n; ++k)
        *to++ = reach_ < 0 ? 0 : entry[std::min(std::abs(step[k]), reach_)];
    });
    return values;
  }

  void add_law(const scale_law& law, std::int64_t head_dim,
               std::optional<dense_array<double>>& scale,
               std::optional<dense_array<double>>& bias) {
    has_law_ = true;
    of_law_ = xt::cast<double>(distances_);
    dense_array<double> added = of_law_;
    const auto* both = std::get_if<laws::scale_invariant>(&law.alternatives());
    for (std::size_t k = 0; k < added.size(); ++k) {
      const double step = std::abs(added.flat(k));
      of_law_.flat(k) = law.scale(step, head_dim) * std::sqrt(static_cast<double>(head_dim));
      if (both) added.flat(k) = -2 * std::log1p(step / both->tau);
    }
    scale = scale ? dense_array<double>(*scale * of_law_) : of_law_;
    if (both) bias = bias ? dense_array<double>(*bias + added) : added;
  }

  table_matrix as_matrix(const std::optional<dense_array<double>>& values) const {
    if (!values || n_queries_ == 0 || n_keys_ == 0) return {};
    return new_matrix(*values);
  }

  /// values[..., n_queries - 1 - i + j] at (i, j).
  table_matrix new_matrix(dense_array<double> values) const {
    extents shape = shape_of(values), strides(shape.size() + 1, 1);
    std::int64_t entry = shape.back();
    for (std::size_t axis = shape.size() - 1; axis-- > 0; entry *= shape[axis])
      strides[axis] = entry;
    strides[shape.size() - 1] = -1;
    shape.back() = n_queries_;
    shape.push_back(n_keys_);
    table_matrix result;
    const auto over = [&](const auto& numbers) {
      const auto* first_row = numbers.data() + n_queries_ - 1;
      result.matrix = {first_row, compute_, sizeof *first_row, shape, strides, 2};
    };
    if (compute_ == element_type::float64) {
      result.wide = std::move(values);
      over(result.wide);
    } else {
      result.narrow = xt::cast<float>(values);
      over(result.narrow);
    }
    return result;
  }

  extents leading_;
  std::int64_t n_queries_ = 0, n_keys_ = 0, reach_ = -1;
  element_type compute_ = element_type::float32;
  dense_array<std::int64_t> distances_;
  bool has_law_ = false;
  dense_array<double> of_law_;
  table_matrix distance_scale_, distance_bias_;
};

}  // namespace attnscale::detail
