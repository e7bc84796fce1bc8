// SPDX-License-Identifier: BSD-3-Clause
//
// From the arrays of a call of linear attention to the core's problem: the checks of shapes, the
// walk over batches and heads, and the sums over keys that outlive a call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "attnscale/check.hpp"
#include "attnscale/describe.hpp"
#include "attnscale/intervals.hpp"
#include "attnscale/linear_family.hpp"
#include "attnscale/linear_problem.hpp"
#include "attnscale/number_or_array.hpp"
#include "attnscale/strided_array.hpp"

namespace attnscale::detail {

template <class... Arrays>
using linear_compute_t = std::common_type_t<typename Arrays::value_type...>;

/// Query, key and value of one call, which fit each other.
struct linear_inputs {
  strided_array query, key, value;
  extents leading;  ///< (..., heads) of the result

  linear_inputs(strided_array q, strided_array k, strided_array v, bool enable_gqa)
      : query(std::move(q)), key(std::move(k)), value(std::move(v)) {
    leading = leading_shape({{"query", &query}, {"key", &key}, {"value", &value}}, enable_gqa);
    check_matrices(query, key, value);
  }

  std::int64_t n_queries() const { return query.extent(2); }
  std::int64_t n_keys() const { return key.extent(2); }
  std::int64_t head_dim() const { return key.extent(1); }
  std::int64_t value_dim() const { return value.extent(1); }
};

/// Query i sees the keys 0 ... i + offset; none: all of them.
template <class Options>
std::optional<std::int64_t> offset_of(const Options& options, const linear_inputs& in) {
  check_causal(options);
  if (options.causal == causal_alignment::bottom_right) return in.n_keys() - in.n_queries();
  if (options.causal == causal_alignment::offset) return options.causal_offset;
  if (options.is_causal || options.causal == causal_alignment::top_left) return 0;
  return std::nullopt;
}

/// Rows in pairs: query i sees the keys 0 ... i.
inline std::optional<std::int64_t> paired_rows(const linear_inputs& in) {
  if (in.n_queries() != in.n_keys())
    refuse("query and key must have the same number of rows, got " + text_of(in.n_queries()) +
           " and " + text_of(in.n_keys()));
  return 0;
}

/// Features that are given: a negative one would make weights negative.
template <class A>
void check_given(const char* name, const A& features) {
  double least = 0;
  for (const auto x : features) least = std::min(least, static_cast<double>(x));
  if (least < 0)
    refuse(std::string(name) +
           " must not be negative where feature_map is given: weights would "
           "be; got " +
           text_of(least));
}

template <class A, class Options>
void check_features(const Options& options, const char* name, const A& rows) {
  if constexpr (std::is_same_v<Options, linear_attention_options>)
    if (options.feature_map == linear_feature_map::given) check_given(name, rows);
}

/// A call of a family with options of its own, checked.
struct linear_description {
  linear_inputs in;
  std::optional<std::int64_t> offset;
  linear_family family;
};

template <class Q, class K, class V, class Options>
linear_description describe_linear(const Q& query, const K& key, const V& value,
                                   const Options& options) {
  linear_inputs in({query, 2}, {key, 2}, {value, 2}, options.enable_gqa);
  const std::optional<std::int64_t> offset = offset_of(options, in);
  check_threads(options.num_threads);
  check_features(options, "query", query);
  check_features(options, "key", key);
  linear_family family = family_of(options, in.head_dim());
  family.check_positions(std::max(in.n_queries(), in.n_keys()));
  return {std::move(in), offset, std::move(family)};
}

/// Log-decays as (..., heads, n), all of them there.
inline dense_array<double> read_decay(const number_or_array<double>& log_decay,
                                      const extents& leading, std::int64_t n) {
  const extents shape = joined(leading, {n});
  if (!log_decay) refuse("log_decay must be given");
  check_broadcast("log_decay", strided_array(log_decay.values(), 1), shape, "(..., heads, n)");
  double most = -std::numeric_limits<double>::infinity();
  for (const double each : log_decay.values()) {
    if (!std::isfinite(each)) refuse("log_decay must be finite and at most 0, got NaN or infinity");
    most = std::max(most, each);
  }
  if (most > 0) refuse("log_decay must be finite and at most 0, got " + text_of(most));
  dense_array<double> all = new_array<double>(leading, {n});
  all = xt::broadcast(log_decay.values(), all.shape());
  return all;
}

/// Sums over keys of every head, in double.
struct head_sums {
  dense_array<double> reference, total;  ///< (..., heads, features)
  dense_array<double> products;          ///< (..., heads, features, value_dim)

  head_sums() = default;
  /// Over no keys.
  head_sums(const extents& leading, std::int64_t features, std::int64_t value_dim)
      : reference(new_array<double>(leading, {features})),
        total(reference),
        products(new_array<double>(leading, {features, value_dim})) {
    reference.fill(-std::numeric_limits<double>::infinity());
    total.fill(0);
    products.fill(0);
  }

  bool empty() const { return products.dimension() < 2; }

  /// Of the head at an index of a call, whose heads may share them in groups.
  linear_sums at(const extents& index, const extents& call_shape) const {
    const auto place = [&](const dense_array<double>& array, int inner) {
      const void* const numbers = strided_array(array, inner).at(index, call_shape);
      return static_cast<double*>(const_cast<void*>(numbers));
    };
    return {place(reference, 1), place(total, 1), place(products, 2)};
  }
};

/// The arrays of one call of the core: query and output, key and value, or all of them.
struct linear_arrays {
  strided_array query{}, key{}, value{}, output{}, decay{};
  const head_sums* sums = nullptr;
  std::int64_t n_summed = 0;     ///< keys of `sums`
  std::int64_t first_query = 0;  ///< positions of the first rows
  std::int64_t first_key = 0;
};

/// Where the rows of a head begin. The core takes null for an array that is not there, and one
/// without elements may be null as well.
inline const void* rows_at(const strided_array& array, const extents& index,
                           const extents& leading) {
  alignas(64) static double nothing = 0;
  const void* const found = array.at(index, leading);
  return array && !found ? &nothing : found;
}

/// Calls the core on every head of `leading`.
inline void run_linear(const linear_family& family, const linear_arrays& arrays,
                       const extents& leading, std::optional<std::int64_t> offset,
                       const execution& how) {
  linear_problem p{};
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
  if (p.form.features == 0) p.n_keys = 0;  // keys have no weight then, whatever their values are
  p.query = arrays.query.layout(), p.key = arrays.key.layout();
  p.value = arrays.value.layout(), p.output = arrays.output.layout();
  for_each_index(leading, [&](const extents& index) {
    const auto at = [&](const strided_array& array) { return rows_at(array, index, leading); };
    p.heads.push_back({{at(arrays.query), at(arrays.key), at(arrays.value),
                        static_cast<const double*>(at(arrays.decay))},
                       const_cast<void*>(at(arrays.output)),
                       arrays.sums ? arrays.sums->at(index, leading) : linear_sums{}});
  });
  run(p, how);
}

/// The output of every query, which reads `before` and the keys that it sees.
template <class T>
dense_array<T> attend_linear(const linear_family& family, const linear_inputs& in,
                             std::optional<std::int64_t> offset, const execution& how,
                             linear_arrays more = {}) {
  auto output = new_array<T>(in.leading, {in.n_queries(), in.value_dim()});
  more.query = in.query;
  more.key = in.key;
  more.value = in.value;
  more.output = strided_array(output, 2);
  run_linear(family, more, in.leading, offset, how);
  return output;
}

}  // namespace attnscale::detail
