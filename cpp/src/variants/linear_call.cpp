// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/detail/linear_call.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "attnscale/detail/linear_problem.hpp"
#include "attnscale/detail/refuse.hpp"
#include "attnscale/performer_projection.hpp"

namespace attnscale {
namespace {

using detail::check_at_least;
using detail::check_enumerator;
using detail::feature_map;
using detail::linear_norm;
using detail::refuse;
using detail::text_of;

double finite_scale(double scale) {
  if (!std::isfinite(scale)) refuse("scale must be finite, got " + text_of(scale));
  return scale;
}

/// The directions of a call, (features, head_dim).
row_array<double> directions_of(const performer_attention_options& options, std::int64_t head_dim) {
  if (!options.projection) {
    detail::check_at_least("features", options.features, 1);
    row_array<double> drawn{{options.features, head_dim}, {}};
    drawn.numbers.resize(static_cast<std::size_t>(detail::entries_of(drawn.extents)));
    if (head_dim > 0)
      draw_projection(options.features, head_dim, {.from = options.from}, drawn.numbers.data());
    return drawn;
  }
  row_array<double> given = detail::plain<double>(*options.projection);
  const std::vector<std::int64_t>& shape = given.extents;
  if (shape.size() != 2 || shape[1] != head_dim || shape[0] == 0)
    refuse("projection must have the shape (features, head_dim) with head_dim = " +
           text_of(head_dim) + ", got " + text_of(shape));
  for (const double each : given.numbers) detail::check_finite("projection", each);
  if (options.from.key != 0 || options.from.stream != 0)
    refuse("from draws the directions, so it must not be given with a projection");
  if (options.features != performer_attention_options{}.features && options.features != shape[0])
    refuse("features must be the rows of the projection, " + text_of(shape[0]) + ", got " +
           text_of(options.features));
  return given;
}

/// Start of the rows of a head. Null stands for an absent array in the core, but an array without
/// elements may be null as well.
const void* rows_at(const strided_array& array, const extents& index, const extents& leading) {
  alignas(64) static double nothing = 0;
  const void* const found = array.at(index, leading);
  return array && !found ? &nothing : found;
}

/// Sums of the head at an index of a call; groups of heads may share them.
detail::linear_sums sums_at(const head_sums& sums, const extents& index, const extents& leading) {
  const auto place = [&](const row_array<double>& array, int inner) {
    return static_cast<double*>(strided_array(array, inner).place(index, leading));
  };
  return {place(sums.reference, 1), place(sums.total, 1), place(sums.products, 2)};
}

}  // namespace

// ---- families ----------------------------------------------------------------------------------

std::int64_t linear_family::features(std::int64_t head_dim) const {
  if (map == feature_map::projected) return static_cast<std::int64_t>(projection.extents[1]);
  return map == feature_map::turned ? 2 * head_dim : head_dim;
}

detail::linear_form linear_family::form(std::int64_t head_dim, std::int64_t value_dim) const {
  detail::linear_form found{};
  found.map = map;
  found.norm = norm;
  found.scale = scale;
  found.head_dim = head_dim;
  found.features = features(head_dim);
  found.value_dim = value_dim;
  found.projection = map == feature_map::projected ? projection.numbers.data() : nullptr;
  found.norm_factor = norm_factor;
  found.shift = shift;
  return found;
}

std::vector<double> linear_family::turn(std::int64_t first, std::int64_t n) const {
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

void linear_family::check_positions(std::int64_t n) const {
  if (map == feature_map::turned && n > max_length)
    refuse("max_length must be at least the number of positions, " + text_of(n) + ", got " +
           text_of(max_length));
}

linear_family family_of(const efficient_attention_options& options, std::int64_t) {
  check_enumerator("normalization", options.normalization, efficient_normalization::scaling);
  linear_family family;
  family.scale = finite_scale(options.scale);
  const bool softmax = options.normalization == efficient_normalization::softmax;
  family.map = softmax ? feature_map::exponential : feature_map::given;
  family.norm = softmax ? linear_norm::channels : linear_norm::count;
  return family;
}

linear_family family_of(const linear_attention_options& options, std::int64_t) {
  using enum linear_feature_map;
  check_enumerator("feature_map", options.feature_map, given);
  linear_family family;
  family.map = options.feature_map == elu    ? feature_map::elu
               : options.feature_map == relu ? feature_map::relu
                                             : feature_map::given;
  return family;
}

linear_family family_of(const cosformer_attention_options& options, std::int64_t) {
  check_at_least("max_length", options.max_length, 1);
  linear_family family;
  family.map = feature_map::turned;
  family.max_length = options.max_length;
  return family;
}

/// Features ln phi(x) = W x' - |x'|^2 / 2 - ln(features) / 2 with x' = sqrt(scale) x.
linear_family family_of(const performer_attention_options& options, std::int64_t head_dim) {
  const auto dim = static_cast<double>(std::max<std::int64_t>(head_dim, 1));
  const double scale = options.scale ? finite_scale(*options.scale) : 1 / std::sqrt(dim);
  if (scale <= 0) refuse("scale must be positive, got " + text_of(scale));
  linear_family family;
  family.map = feature_map::projected;
  const row_array<double> directions = directions_of(options, head_dim);
  const auto features = static_cast<std::size_t>(directions.extents[0]);
  const auto columns = static_cast<std::size_t>(directions.extents[1]);
  family.projection = {{directions.extents[1], directions.extents[0]}, {}};
  family.projection.numbers.resize(features * columns);
  for (std::size_t f = 0; f < features; ++f)
    for (std::size_t c = 0; c < columns; ++c)
      family.projection.numbers[c * features + f] =
          directions.numbers[f * columns + c] * std::sqrt(scale);
  family.norm_factor = scale / 2;
  family.shift = std::log(static_cast<double>(features)) / 2;
  return family;
}

linear_family family_of(const ssd_options&, std::int64_t) {
  linear_family family;
  family.norm = linear_norm::none;
  return family;
}

// ---- calls -------------------------------------------------------------------------------------

linear_inputs::linear_inputs(strided_array q, strided_array k, strided_array v, bool enable_gqa)
    : query(std::move(q)), key(std::move(k)), value(std::move(v)) {
  leading = leading_shape({{"query", &query}, {"key", &key}, {"value", &value}}, enable_gqa);
  check_matrices(query, key, value);
}

std::int64_t paired_rows(const linear_inputs& in) {
  if (in.n_queries() != in.n_keys())
    refuse("query and key must have the same number of rows, got " + text_of(in.n_queries()) +
           " and " + text_of(in.n_keys()));
  return 0;
}

void check_given(const char* name, const strided_array& features) {
  const strided_array each = features.with_inner(0);
  double least = 0;
  for_each_index(each.shape(), [&](const extents& index) {
    const void* const x = each.at(index, each.shape());
    least = std::min(least, detail::number_at(x, each.layout().type, 0));
  });
  if (least < 0)
    refuse(std::string(name) +
           " must not be negative with feature_map = given, or weights would be; got " +
           text_of(least));
}

void check_grad(const strided_array& grad, const linear_inputs& in) {
  check_broadcast("grad_output", grad, joined(in.leading, {in.n_queries(), in.value_dim()}),
                  "the output");
}

row_array<double> read_decay(const number_or_array<double>& log_decay, const extents& leading,
                             std::int64_t n) {
  const extents shape = joined(leading, {n});
  if (!log_decay) refuse("log_decay must be given");
  check_broadcast("log_decay", strided_array(log_decay.rows(), 1), shape, "(..., heads, n)");
  double most = -std::numeric_limits<double>::infinity();
  for (const double each : log_decay.rows().numbers) {
    if (!std::isfinite(each)) refuse("log_decay must be finite and at most 0, got NaN or infinity");
    most = std::max(most, each);
  }
  if (most > 0) refuse("log_decay must be finite and at most 0, got " + text_of(most));
  return broadcast_rows(log_decay.rows(), shape);
}

void run_linear(const linear_family& family, const linear_arrays& arrays, const extents& leading,
                std::optional<std::int64_t> offset, const execution& how) {
  detail::linear_problem p{};
  p.form = family.form((arrays.query ? arrays.query : arrays.key).extent(1),
                       (arrays.output ? arrays.output : arrays.value).extent(1));
  p.n_queries = arrays.query ? arrays.query.extent(2) : 0;
  p.n_keys = arrays.key ? arrays.key.extent(2) : 0;
  p.is_causal = offset.has_value();
  p.offset = std::clamp(offset.value_or(0), -p.n_queries, p.n_keys);
  const std::vector<double> query_turn = family.turn(arrays.first_query, p.n_queries);
  const std::vector<double> key_turn = family.turn(arrays.first_key, p.n_keys);
  p.query_turn = query_turn.data();
  p.key_turn = key_turn.data();
  p.n_summed = arrays.n_summed;
  if (p.form.features == 0) p.n_keys = 0;  // keys have zero weight then, whatever their values are
  p.query = arrays.query.layout(), p.key = arrays.key.layout();
  p.value = arrays.value.layout(), p.output = arrays.output.layout();
  for_each_index(leading, [&](const extents& index) {
    const auto at = [&](const strided_array& array) { return rows_at(array, index, leading); };
    p.heads.push_back(
        {{at(arrays.query), at(arrays.key), at(arrays.value),
          static_cast<const double*>(at(arrays.decay))},
         const_cast<void*>(at(arrays.output)),
         arrays.sums ? sums_at(*arrays.sums, index, leading) : detail::linear_sums{}});
  });
  detail::run(p, how);
}

void run_linear_gradients(const linear_family& family, const linear_inputs& in,
                          const linear_gradient_arrays& arrays, std::optional<std::int64_t> offset,
                          const execution& how) {
  detail::linear_gradient_problem p{};
  p.form = family.form(in.head_dim(), in.value_dim());
  p.n_queries = in.n_queries(), p.n_keys = in.n_keys();
  p.is_causal = offset.has_value();
  p.offset = std::clamp(offset.value_or(0), -p.n_queries, p.n_keys);
  const std::vector<double> query_turn = family.turn(offset.value_or(0), p.n_queries);
  const std::vector<double> key_turn = family.turn(0, p.n_keys);
  p.query_turn = query_turn.data(), p.key_turn = key_turn.data();
  p.query = in.query.layout(), p.key = in.key.layout(), p.value = in.value.layout();
  p.grad = arrays.grad.layout(), p.query_out = arrays.query.layout();
  p.key_out = arrays.key.layout(), p.value_out = arrays.value.layout();
  for_each_index(in.leading, [&](const extents& index) {
    const auto at = [&](const strided_array& array) { return rows_at(array, index, in.leading); };
    const auto to = [&](const strided_array& array) { return const_cast<void*>(at(array)); };
    p.heads.push_back(
        {{at(in.query), at(in.key), at(in.value), static_cast<const double*>(at(arrays.decay))},
         at(arrays.grad),
         to(arrays.query),
         to(arrays.key),
         to(arrays.value),
         static_cast<double*>(to(arrays.of_decay))});
  });
  detail::run(p, how);
}

}  // namespace attnscale
