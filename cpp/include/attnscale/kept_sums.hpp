// SPDX-License-Identifier: BSD-3-Clause
//
// The sums that a state of linear attention keeps: how keys come in, how queries read them, how two
// states merge, and what of it is refused.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "attnscale/describe_linear.hpp"
#include "attnscale/linear_family.hpp"
#include "attnscale/linear_options.hpp"
#include "attnscale/strided_array.hpp"

namespace attnscale::detail {

/// Keys and values that a state takes in.
struct new_keys {
  strided_array key, value;
  extents leading;  ///< (..., heads) of their sums

  new_keys(strided_array k, strided_array v) : key(std::move(k)), value(std::move(v)) {
    leading = leading_shape({{"key", &key}, {"value", &value}}, false);
    check_matrices(key, key, value);
  }

  std::int64_t n() const { return key.extent(2); }
};

/// "key (2, n, 4) and value (2, n, 3)": how many keys there are is no part of it.
inline std::string text_of(const extents& key, const extents& value) {
  const auto shown = [](const extents& shape) {
    std::string text;
    for (std::size_t i = 0; i < shape.size(); ++i)
      text += (i ? ", " : "") + (i + 2 == shape.size() ? "n" : std::to_string(shape[i]));
    return "(" + text + ")";
  };
  return "key " + shown(key) + " and value " + shown(value);
}

/// Sums over keys, and what their arrays looked like.
struct kept_sums {
  extents key_shape, value_shape;  ///< of the first keys, whose number is left out as 0
  head_sums sums;
  std::int64_t n_keys = 0;

  bool any() const { return !key_shape.empty(); }
  const head_sums* sums_or_null() const { return any() ? &sums : nullptr; }

  static extents without_n(const strided_array& array) {
    extents shape = array.shape();
    shape[shape.size() - 2] = 0;
    return shape;
  }

  /// Refuses keys that cannot come after those before.
  void check_shapes(const new_keys& keys, bool enable_gqa) const {
    const extents of_key = without_n(keys.key), of_value = without_n(keys.value);
    if (any() && (of_key != key_shape || of_value != value_shape))
      refuse("key and value must have the heads and dimensions of the first update, " +
             text_of(key_shape, value_shape) + ", got " + text_of(of_key, of_value));
    const std::int64_t heads = keys.key.leading_extent(1), others = keys.value.leading_extent(1);
    if (enable_gqa && keys.key.n_leading() > 0 && heads != others)
      refuse("key and value of a state must have the same heads, got " + detail::text_of(heads) +
             " and " + detail::text_of(others));
  }

  /// The same for state-space duality.
  void check_state_shape(const new_keys& keys) const {
    if (!any()) return;
    const extents wanted(sums.products.shape().begin(), sums.products.shape().end());
    const extents seen = joined(keys.leading, {keys.key.extent(1), keys.value.extent(1)});
    if (seen != wanted)
      refuse(
          "key and value must have the heads and dimensions of the first update, (..., heads, "
          "head_dim, value_dim) = " +
          text_of(wanted) + ", got " + text_of(seen));
  }

  /// (..., heads) of what queries read.
  extents leading_of(const strided_array& query, bool enable_gqa) const {
    if (!any()) refuse("the state holds no keys yet; update(key, value) comes before read(query)");
    const strided_array key = shape_alone(key_shape), value = shape_alone(value_shape);
    extents leading =
        leading_shape({{"query", &query}, {"key", &key}, {"value", &value}}, enable_gqa);
    check_matrices(query, key, value);
    return leading;
  }

  extents leading_of_ssd(const strided_array& query, bool enable_gqa) const {
    if (!any())
      refuse("the state holds no keys yet; update(key, value, log_decay) comes before read(query)");
    const strided_array key(sums.products, 2);
    extents leading = leading_shape({{"query", &query}, {"key", &key}}, enable_gqa);
    if (query.extent(1) != key.extent(2))
      refuse("query must have the keys' head_dim, " + detail::text_of(key.extent(2)) + ", got " +
             detail::text_of(query.extent(1)));
    return leading;
  }

 private:
  static strided_array shape_alone(const extents& shape) {
    return {nullptr, element_type::float32, 4, shape, extents(shape.size(), 0), 2};
  }
};

/// `before` and those of keys. A new one: an interrupted call leaves the state as it was.
inline kept_sums taken(const kept_sums& before, const new_keys& keys, const linear_family& family,
                       const strided_array& decay, const execution& how) {
  kept_sums after = before;
  if (!after.any()) {
    after.key_shape = kept_sums::without_n(keys.key);
    after.value_shape = kept_sums::without_n(keys.value);
    after.sums = head_sums(keys.leading, family.features(keys.key.extent(1)), keys.value.extent(1));
  }
  run_linear(family,
             {.key = keys.key,
              .value = keys.value,
              .decay = decay,
              .sums = &after.sums,
              .first_key = before.n_keys},
             keys.leading, std::nullopt, how);
  after.n_keys += keys.n();
  return after;
}

/// The outputs of queries that see those keys, the last query beside the last key.
template <class T>
dense_array<T> read_sums(const linear_family& family, const kept_sums& kept,
                         const strided_array& query, const extents& leading, const execution& how) {
  const std::int64_t n = query.extent(2);
  auto output = new_array<T>(leading, {n, strided_array(kept.sums.products, 2).extent(1)});
  run_linear(family,
             {.query = query,
              .output = strided_array(output, 2),
              .sums = &kept.sums,
              .n_summed = kept.n_keys,
              .first_query = kept.n_keys - n},
             leading, std::nullopt, how);
  return output;
}

/// (cosines, sines) of each head, halves of its numbers, turned on by an angle.
inline void turn_on(dense_array<double>& numbers, std::size_t of_head, double cos, double sin) {
  const std::size_t half = of_head / 2;
  for (double* head = numbers.data(); half && head < numbers.data() + numbers.size();
       head += of_head)
    for (std::size_t i = 0; i < half; ++i) {
      const double of_cosines = head[i], of_sines = head[half + i];
      head[i] = of_cosines * cos - of_sines * sin;
      head[half + i] = of_sines * cos + of_cosines * sin;
    }
}

/// Adds sums over other keys, in features' larger references.
inline void add_sums(head_sums& into, const head_sums& more) {
  const std::size_t rows = into.total.size();
  const std::size_t columns = rows ? into.products.size() / rows : 0;
  for (std::size_t f = 0; f < rows; ++f) {
    const double one = into.reference.data()[f], two = more.reference.data()[f];
    const double top = one > two || std::isnan(one) ? one : two;
    const double at = std::isinf(top) && top < 0 ? 0 : top;
    const double a = one == top ? 1 : std::exp(one - at), b = two == top ? 1 : std::exp(two - at);
    into.reference.data()[f] = top;
    into.total.data()[f] = into.total.data()[f] * a + more.total.data()[f] * b;
    for (std::size_t i = f * columns; i < (f + 1) * columns; ++i)
      into.products.data()[i] = into.products.data()[i] * a + more.products.data()[i] * b;
  }
}

/// The sums over the keys of both, those of `two` after those of `one`.
inline kept_sums merged(const kept_sums& one, const kept_sums& two, const linear_family& family) {
  if (one.any() && two.any() &&
      (one.key_shape != two.key_shape || one.value_shape != two.value_shape))
    refuse("the states must have the same shapes, got " + text_of(one.key_shape, one.value_shape) +
           ", and " + text_of(two.key_shape, two.value_shape));
  family.check_positions(one.n_keys + two.n_keys);
  if (!two.any()) return one;
  kept_sums after = two;
  after.n_keys += one.n_keys;
  if (const std::vector<double> turn = family.turn(one.n_keys, 1); !turn.empty()) {
    const auto features = static_cast<std::size_t>(family.features(two.key_shape.back()));
    const auto columns = static_cast<std::size_t>(two.value_shape.back());
    turn_on(after.sums.total, features, turn[0], turn[1]);
    turn_on(after.sums.products, features * columns, turn[0], turn[1]);
  }
  if (one.any()) add_sums(after.sums, one.sums);
  return after;
}

// ---- what differs from family to family ------------------------------------------------------

/// The family of a state: no key to come makes exp(x) of elu(x) + 1 vanish.
inline linear_family state_family(linear_family family) {
  if (family.map == feature_map::elu) family.map = feature_map::log_elu;
  return family;
}

template <class Options>
void refuse_causal(const Options& options) {
  check_causal(options);
  if (options.is_causal || options.causal != causal_alignment::none)
    refuse(
        "a state has no causal form: its queries see all keys so far, and extend() those of a "
        "chunk one after the other; got " +
        std::string(options.is_causal ? "is_causal = true" : "causal"));
}

/// Of keys to come, as far as the options know it.
template <class Options>
std::int64_t known_head_dim(const Options& options) {
  if constexpr (std::is_same_v<Options, performer_attention_options>)
    if (options.projection && options.projection->dimension() > 0)
      return static_cast<std::int64_t>(options.projection->shape().back());
  return 1;
}

/// Sums of features that other options made are of another kind: they do not add up.
inline void check_same(const char* name, bool same, const std::string& seen = "") {
  if (!same) refuse("the states must have the same " + std::string(name) + ", got " + seen);
}

inline std::string both(double one, double two) { return text_of(one) + " and " + text_of(two); }

inline void check_same_options(const efficient_attention_options& one,
                               const efficient_attention_options& two) {
  check_same("normalization", one.normalization == two.normalization, "softmax and scaling");
  check_same("scale", one.scale == two.scale, both(one.scale, two.scale));
}

inline void check_same_options(const linear_attention_options& one,
                               const linear_attention_options& two) {
  check_same("feature_map", one.feature_map == two.feature_map, "different ones");
}

inline void check_same_options(const cosformer_attention_options& one,
                               const cosformer_attention_options& two) {
  check_same("max_length", one.max_length == two.max_length,
             text_of(one.max_length) + " and " + text_of(two.max_length));
}

inline void check_same_options(const performer_attention_options& one,
                               const performer_attention_options& two) {
  check_same("scale", one.scale == two.scale, "different ones");
  check_same("projection", one.projection == two.projection, "different ones");
  if (one.projection) return;
  check_same("features", one.features == two.features,
             text_of(one.features) + " and " + text_of(two.features));
  check_same("from", one.from.key == two.from.key && one.from.stream == two.from.stream,
             "different random numbers");
}

}  // namespace attnscale::detail
