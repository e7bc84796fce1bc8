// SPDX-License-Identifier: BSD-3-Clause
//
// Sums kept by a state of linear attention: adding keys, reading by queries, merging states, and
// checks.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>

#include "attnscale/detail/linear_call.hpp"
#include "attnscale/detail/refuse.hpp"

namespace attnscale {
namespace {

using detail::feature_map;
using detail::refuse;
using detail::text_of;

/// Shapes for messages, without the number of keys: "key (2, n, 4) and value (2, n, 3)".
std::string text_of_shapes(const extents& key, const extents& value) {
  const auto shown = [](const extents& shape) {
    std::string text;
    for (std::size_t i = 0; i < shape.size(); ++i)
      text += (i ? ", " : "") + (i + 2 == shape.size() ? "n" : std::to_string(shape[i]));
    return "(" + text + ")";
  };
  return "key " + shown(key) + " and value " + shown(value);
}

extents without_n(const strided_array& array) {
  extents shape = array.shape();
  shape[shape.size() - 2] = 0;
  return shape;
}

strided_array shape_alone(const extents& shape) {
  return {nullptr, element_type::float32, 4, shape, extents(shape.size(), 0), 2};
}

/// Sums over no keys.
head_sums no_sums(const extents& leading, std::int64_t features, std::int64_t value_dim) {
  const auto filled = [&](std::initializer_list<std::int64_t> inner, double number) {
    const extents shape = joined(leading, inner);
    const auto n = static_cast<std::size_t>(count_entries(shape));
    return row_array<double>{{shape.begin(), shape.end()}, std::vector<double>(n, number)};
  };
  return {filled({features}, -std::numeric_limits<double>::infinity()), filled({features}, 0),
          filled({features, value_dim}, 0)};
}

/// Rotates the (cosines, sines) of each head, halves of its numbers, by an angle.
void turn_on(std::vector<double>& numbers, std::size_t of_head, double cos, double sin) {
  const std::size_t half = of_head / 2;
  for (double* head = numbers.data(); half && head < numbers.data() + numbers.size();
       head += of_head)
    for (std::size_t i = 0; i < half; ++i) {
      const double of_cosines = head[i], of_sines = head[half + i];
      head[i] = of_cosines * cos - of_sines * sin;
      head[half + i] = of_sines * cos + of_cosines * sin;
    }
}

/// Adds sums over other keys, with the larger reference of each feature.
void add_sums(head_sums& into, const head_sums& more) {
  const std::size_t rows = into.total.numbers.size();
  const std::size_t columns = rows ? into.products.numbers.size() / rows : 0;
  for (std::size_t f = 0; f < rows; ++f) {
    const double one = into.reference.numbers[f], two = more.reference.numbers[f];
    const double top = one > two || std::isnan(one) ? one : two;
    const double at = std::isinf(top) && top < 0 ? 0 : top;
    const double a = one == top ? 1 : std::exp(one - at), b = two == top ? 1 : std::exp(two - at);
    into.reference.numbers[f] = top;
    into.total.numbers[f] = into.total.numbers[f] * a + more.total.numbers[f] * b;
    for (std::size_t i = f * columns; i < (f + 1) * columns; ++i)
      into.products.numbers[i] = into.products.numbers[i] * a + more.products.numbers[i] * b;
  }
}

/// Refuses states with different options, whose sums do not add up.
void check_same(const char* name, bool same, const std::string& seen = "") {
  if (!same) refuse("the states must have the same " + std::string(name) + ", got " + seen);
}

std::string both(double one, double two) { return text_of(one) + " and " + text_of(two); }

}  // namespace

new_keys::new_keys(strided_array k, strided_array v) : key(std::move(k)), value(std::move(v)) {
  leading = leading_shape({{"key", &key}, {"value", &value}}, false);
  check_matrices(key, key, value);
}

void state_sums::check_shapes(const new_keys& keys, bool enable_gqa) const {
  const extents of_key = without_n(keys.key), of_value = without_n(keys.value);
  if (any() && (of_key != key_shape || of_value != value_shape))
    refuse("key and value must have the heads and dimensions of the first update, " +
           text_of_shapes(key_shape, value_shape) + ", got " + text_of_shapes(of_key, of_value));
  const std::int64_t heads = keys.key.leading_extent(1), others = keys.value.leading_extent(1);
  if (enable_gqa && keys.key.n_leading() > 0 && heads != others)
    refuse("key and value of a state must have the same heads, got " + text_of(heads) + " and " +
           detail::text_of(others));
}

void state_sums::check_state_shape(const new_keys& keys) const {
  if (!any()) return;
  const extents wanted(sums.products.extents.begin(), sums.products.extents.end());
  const extents seen = joined(keys.leading, {keys.key.extent(1), keys.value.extent(1)});
  if (seen != wanted)
    refuse(
        "key and value must have the heads and dimensions of the first update, (..., heads, "
        "head_dim, value_dim) = " +
        text_of(wanted) + ", got " + text_of(seen));
}

extents state_sums::leading_of(const strided_array& query, bool enable_gqa) const {
  if (!any()) refuse("the state holds no keys yet; update(key, value) comes before read(query)");
  const strided_array key = shape_alone(key_shape), value = shape_alone(value_shape);
  extents leading =
      leading_shape({{"query", &query}, {"key", &key}, {"value", &value}}, enable_gqa);
  check_matrices(query, key, value);
  return leading;
}

extents state_sums::leading_of_ssd(const strided_array& query, bool enable_gqa) const {
  if (!any())
    refuse("the state holds no keys yet; update(key, value, log_decay) comes before read(query)");
  const strided_array key(sums.products, 2);
  extents leading = leading_shape({{"query", &query}, {"key", &key}}, enable_gqa);
  if (query.extent(1) != key.extent(2))
    refuse("query must have the keys' head_dim, " + detail::text_of(key.extent(2)) + ", got " +
           detail::text_of(query.extent(1)));
  return leading;
}

state_sums state_sums::with(const new_keys& keys, const linear_family& family,
                            const strided_array& decay, const execution& how) const {
  state_sums after = *this;
  if (!after.any()) {
    after.key_shape = without_n(keys.key);
    after.value_shape = without_n(keys.value);
    after.sums = no_sums(keys.leading, family.features(keys.key.extent(1)), keys.value.extent(1));
  }
  run_linear(family,
             {.key = keys.key,
              .value = keys.value,
              .decay = decay,
              .sums = &after.sums,
              .first_key = n_keys},
             keys.leading, std::nullopt, how);
  after.n_keys += keys.n();
  return after;
}

void state_sums::read(const linear_family& family, const strided_array& query,
                      const extents& leading, const strided_array& output,
                      const execution& how) const {
  run_linear(family,
             {.query = query,
              .output = output,
              .sums = &sums,
              .n_summed = n_keys,
              .first_query = n_keys - query.extent(2)},
             leading, std::nullopt, how);
}

state_sums state_sums::merged(const state_sums& two, const linear_family& family) const {
  const state_sums& one = *this;
  if (one.any() && two.any() &&
      (one.key_shape != two.key_shape || one.value_shape != two.value_shape))
    refuse("the states must have the same shapes, got " +
           text_of_shapes(one.key_shape, one.value_shape) + ", and " +
           text_of_shapes(two.key_shape, two.value_shape));
  family.check_positions(one.n_keys + two.n_keys);
  if (!two.any()) return one;
  state_sums after = two;
  after.n_keys += one.n_keys;
  if (const std::vector<double> turn = family.turn(one.n_keys, 1); !turn.empty()) {
    const auto features = static_cast<std::size_t>(family.features(two.key_shape.back()));
    const auto columns = static_cast<std::size_t>(two.value_shape.back());
    turn_on(after.sums.total.numbers, features, turn[0], turn[1]);
    turn_on(after.sums.products.numbers, features * columns, turn[0], turn[1]);
  }
  if (one.any()) add_sums(after.sums, one.sums);
  return after;
}

linear_family state_family(linear_family family) {
  if (family.map == feature_map::elu) family.map = feature_map::log_elu;
  return family;
}

void refuse_causal(bool is_causal, causal_alignment causal) {
  if (is_causal || causal != causal_alignment::none)
    refuse(
        "a state has no causal form: its queries see all keys so far, and those of extend() "
        "up to their own; got " +
        std::string(is_causal ? "is_causal = true" : "causal"));
}

void check_same_options(const efficient_attention_options& one,
                        const efficient_attention_options& two) {
  check_same("normalization", one.normalization == two.normalization, "softmax and scaling");
  check_same("scale", one.scale == two.scale, both(one.scale, two.scale));
}

void check_same_options(const linear_attention_options& one, const linear_attention_options& two) {
  check_same("feature_map", one.feature_map == two.feature_map, "different ones");
}

void check_same_options(const cosformer_attention_options& one,
                        const cosformer_attention_options& two) {
  check_same("max_length", one.max_length == two.max_length,
             text_of(one.max_length) + " and " + text_of(two.max_length));
}

void check_same_options(const performer_attention_options& one,
                        const performer_attention_options& two) {
  check_same("scale", one.scale == two.scale, "different ones");
  check_same("projection", one.projection == two.projection, "different ones");
  if (one.projection) return;
  check_same("features", one.features == two.features,
             text_of(one.features) + " and " + text_of(two.features));
  check_same("from", one.from.key == two.from.key && one.from.stream == two.from.stream,
             "different random numbers");
}

}  // namespace attnscale
