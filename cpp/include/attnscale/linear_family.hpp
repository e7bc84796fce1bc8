// SPDX-License-Identifier: BSD-3-Clause
//
// From the options of an attention of linear time to the core's form: how rows become features, and
// what the sums are divided by.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "attnscale/linear_form.hpp"
#include "attnscale/linear_options.hpp"
#include "attnscale/performer_projection.hpp"
#include "attnscale/refuse.hpp"
#include "attnscale/strided_array.hpp"

namespace attnscale::detail {

/// A family with its options.
struct linear_family {
  feature_map map = feature_map::given;
  linear_norm norm = linear_norm::weights;
  double scale = 1;
  dense_array<double> projection{};  ///< of `projected`: (head_dim, features)
  double norm_factor = 0, shift = 0;
  std::int64_t max_length = 1;  ///< of `turned`: a quarter of a turn takes so many positions

  /// Features of a row.
  std::int64_t features(std::int64_t head_dim) const {
    if (map == feature_map::projected) return static_cast<std::int64_t>(projection.shape(1));
    return map == feature_map::turned ? 2 * head_dim : head_dim;
  }

  /// The core's form, which points at the projection.
  linear_form form(std::int64_t head_dim, std::int64_t value_dim) const {
    linear_form found{};
    found.map = map;
    found.norm = norm;
    found.scale = scale;
    found.head_dim = head_dim;
    found.features = features(head_dim);
    found.value_dim = value_dim;
    found.projection = map == feature_map::projected ? projection.data() : nullptr;
    found.norm_factor = norm_factor;
    found.shift = shift;
    return found;
  }

  /// Of `turned`: cosine and sine at n positions; otherwise nothing.
  std::vector<double> turn(std::int64_t first, std::int64_t n) const {
    std::vector<double> numbers;
    if (map != feature_map::turned) return numbers;
    constexpr double pi = 3.14159265358979323846;
    const double step = pi / (2 * static_cast<double>(max_length));
    for (std::int64_t at = first; at < first + n; ++at) {
      numbers.push_back(std::cos(static_cast<double>(at) * step));
      numbers.push_back(std::sin(static_cast<double>(at) * step));
    }
    return numbers;
  }

  /// Beyond M the cosine, and with it the weight, would be negative.
  void check_positions(std::int64_t n) const {
    if (map == feature_map::turned && n > max_length)
      refuse("max_length must be at least the number of positions, " + text_of(n) + ", got " +
             text_of(max_length));
  }
};

inline double finite_scale(double scale) {
  if (!std::isfinite(scale)) refuse("scale must be finite, got " + text_of(scale));
  return scale;
}

inline linear_family family_of(const efficient_attention_options& options, std::int64_t) {
  check_enumerator("normalization", options.normalization, efficient_normalization::scaling);
  linear_family family;
  family.scale = finite_scale(options.scale);
  const bool softmax = options.normalization == efficient_normalization::softmax;
  family.map = softmax ? feature_map::exponential : feature_map::given;
  family.norm = softmax ? linear_norm::channels : linear_norm::count;
  return family;
}

inline linear_family family_of(const linear_attention_options& options, std::int64_t) {
  using enum linear_feature_map;
  check_enumerator("feature_map", options.feature_map, given);
  linear_family family;
  family.map = options.feature_map == elu    ? feature_map::elu
               : options.feature_map == relu ? feature_map::relu
                                             : feature_map::given;
  return family;
}

inline linear_family family_of(const cosformer_attention_options& options, std::int64_t) {
  check_at_least("max_length", options.max_length, 1);
  linear_family family;
  family.map = feature_map::turned;
  family.max_length = options.max_length;
  return family;
}

/// The directions of a call, (features, head_dim).
inline dense_array<double> directions_of(const performer_attention_options& options,
                                         std::int64_t head_dim) {
  if (!options.projection) {
    check_at_least("features", options.features, 1);
    if (head_dim == 0) return new_array<double>({}, {options.features, 0});
    return performer_projection(options.features, head_dim, {.from = options.from});
  }
  const extents shape(options.projection->shape().begin(), options.projection->shape().end());
  if (shape.size() != 2 || shape[1] != head_dim || shape[0] == 0)
    refuse("projection must have the shape (features, head_dim) with head_dim = " +
           text_of(head_dim) + ", got " + text_of(shape));
  for (const double each : *options.projection) check_finite("projection", each);
  if (options.from.key != 0 || options.from.stream != 0)
    refuse("from is of directions that are drawn, got it with a projection");
  if (options.features != performer_attention_options{}.features && options.features != shape[0])
    refuse("features must be the rows of the projection, " + text_of(shape[0]) + ", got " +
           text_of(options.features));
  return *options.projection;
}

/// ln phi(x) = W x' - |x'|^2 / 2 - ln(features) / 2 with x' = sqrt(scale) x.
inline linear_family family_of(const performer_attention_options& options, std::int64_t head_dim) {
  const auto dim = static_cast<double>(std::max<std::int64_t>(head_dim, 1));
  const double scale = options.scale ? finite_scale(*options.scale) : 1 / std::sqrt(dim);
  if (scale <= 0) refuse("scale must be positive, got " + text_of(scale));
  linear_family family;
  family.map = feature_map::projected;
  const dense_array<double> directions = directions_of(options, head_dim);
  const std::size_t features = directions.shape(0), columns = directions.shape(1);
  family.projection = dense_array<double>::from_shape({columns, features});
  for (std::size_t f = 0; f < features; ++f)
    for (std::size_t c = 0; c < columns; ++c)
      family.projection(c, f) = directions(f, c) * std::sqrt(scale);
  family.norm_factor = scale / 2;
  family.shift = std::log(static_cast<double>(features)) / 2;
  return family;
}

inline linear_family family_of(const ssd_options&, std::int64_t) {
  linear_family family;
  family.norm = linear_norm::none;
  return family;
}

}  // namespace attnscale::detail
