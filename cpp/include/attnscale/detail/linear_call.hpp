// SPDX-License-Identifier: BSD-3-Clause
//
// From arrays and options of a call of linear attention to the core's problem: families, checks of
// shapes, the loop over batches and heads, and sums over keys that outlive a call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "attnscale/detail/call_description.hpp"
#include "attnscale/detail/linear_form.hpp"
#include "attnscale/linear_options.hpp"
#include "attnscale/number_or_array.hpp"

namespace attnscale {

/// Feature map of rows, and the divisor of sums.
struct ATTNSCALE_EXPORT linear_family {
  detail::feature_map map = detail::feature_map::given;
  detail::linear_norm norm = detail::linear_norm::weights;
  double scale = 1;
  row_array<double> projection{};  ///< for `projected`: (head_dim, features)
  double norm_factor = 0, shift = 0;
  std::int64_t max_length = 1;  ///< for `turned`: positions of a quarter turn

  /// Number of features of a row.
  std::int64_t features(std::int64_t head_dim) const;
  /// The core's form, which points at the projection.
  detail::linear_form form(std::int64_t head_dim, std::int64_t value_dim) const;
  /// For `turned`: cosine and sine at n positions; otherwise empty.
  std::vector<double> turn(std::int64_t first, std::int64_t n) const;
  /// Refuses positions beyond max_length, where the cosine and the weight would be negative.
  void check_positions(std::int64_t n) const;
};

ATTNSCALE_EXPORT linear_family family_of(const efficient_attention_options& options, std::int64_t);
ATTNSCALE_EXPORT linear_family family_of(const linear_attention_options& options, std::int64_t);
ATTNSCALE_EXPORT linear_family family_of(const cosformer_attention_options& options, std::int64_t);
ATTNSCALE_EXPORT linear_family family_of(const performer_attention_options& options,
                                         std::int64_t head_dim);
ATTNSCALE_EXPORT linear_family family_of(const ssd_options& options, std::int64_t);

/// Query, key and value of one call, which fit each other.
struct ATTNSCALE_EXPORT linear_inputs {
  strided_array query, key, value;
  extents leading;  ///< (..., heads) of the result

  linear_inputs(strided_array q, strided_array k, strided_array v, bool enable_gqa);

  std::int64_t n_queries() const { return query.extent(2); }
  std::int64_t n_keys() const { return key.extent(2); }
  std::int64_t head_dim() const { return key.extent(1); }
  std::int64_t value_dim() const { return value.extent(1); }
};

/// Number of rows, where query i sees keys 0 ... i; refuses unequal numbers of queries and keys.
ATTNSCALE_EXPORT std::int64_t paired_rows(const linear_inputs& in);

/// Refuses negative given features, which would make weights negative.
ATTNSCALE_EXPORT void check_given(const char* name, const strided_array& features);

/// Checks the shape of a gradient by the output.
ATTNSCALE_EXPORT void check_grad(const strided_array& grad, const linear_inputs& in);

/// Log-decays as a full array (..., heads, n).
ATTNSCALE_EXPORT row_array<double> read_decay(const number_or_array<double>& log_decay,
                                              const extents& leading, std::int64_t n);

/// Sums over keys of every head, in double: (..., heads, features), twice, and (..., heads,
/// features, value_dim).
struct head_sums {
  row_array<double> reference{}, total{}, products{};
};

/// Arrays of one call of the core: query and output, key and value, or all of them.
struct linear_arrays {
  strided_array query{}, key{}, value{}, output{}, decay{};
  const head_sums* sums = nullptr;
  std::int64_t n_summed = 0;     ///< number of keys in `sums`
  std::int64_t first_query = 0;  ///< position of the first row
  std::int64_t first_key = 0;
};

/// Calls the core for every head of `leading`.
ATTNSCALE_EXPORT void run_linear(const linear_family& family, const linear_arrays& arrays,
                                 const extents& leading, std::optional<std::int64_t> offset,
                                 const execution& how);

/// Memory for the gradients of each head.
struct linear_gradient_arrays {
  strided_array grad, query, key, value;
  strided_array decay{}, of_decay{};
};

ATTNSCALE_EXPORT void run_linear_gradients(const linear_family& family, const linear_inputs& in,
                                           const linear_gradient_arrays& arrays,
                                           std::optional<std::int64_t> offset,
                                           const execution& how);

/// Keys and values to add to a state.
struct ATTNSCALE_EXPORT new_keys {
  strided_array key, value;
  extents leading;  ///< (..., heads) of their sums

  new_keys(strided_array k, strided_array v);
  std::int64_t n() const { return key.extent(2); }
};

/// Sums over keys, and the shapes of their arrays.
struct ATTNSCALE_EXPORT state_sums {
  extents key_shape, value_shape;  ///< shapes of the first keys and values, with 0 for their number
  head_sums sums;
  std::int64_t n_keys = 0;

  bool any() const { return !key_shape.empty(); }
  const head_sums* sums_or_null() const { return any() ? &sums : nullptr; }
  std::int64_t value_dim() const { return sums.products.extents.back(); }

  /// Refuses keys that do not fit the earlier ones; also for state-space duality.
  void check_shapes(const new_keys& keys, bool enable_gqa) const;
  void check_state_shape(const new_keys& keys) const;
  /// Leading axes (..., heads) of the outputs of queries.
  extents leading_of(const strided_array& query, bool enable_gqa) const;
  extents leading_of_ssd(const strided_array& query, bool enable_gqa) const;
  /// New sums with these keys added. The state itself is unchanged, so an interrupted call leaves
  /// it as it was.
  state_sums with(const new_keys& keys, const linear_family& family, const strided_array& decay,
                  const execution& how) const;
  /// Outputs of queries that see all keys so far; the last query is at the last key.
  void read(const linear_family& family, const strided_array& query, const extents& leading,
            const strided_array& output, const execution& how) const;
  /// Sums over the keys of both, those of `two` last.
  state_sums merged(const state_sums& two, const linear_family& family) const;
};

/// The family of a state, where no later key can make exp(x) of elu(x) + 1 vanish.
ATTNSCALE_EXPORT linear_family state_family(linear_family family);

/// Refuses causal options, which a state does not have.
ATTNSCALE_EXPORT void refuse_causal(bool is_causal, causal_alignment causal);

/// Refuses states of different options, whose sums do not add up.
ATTNSCALE_EXPORT void check_same_options(const efficient_attention_options& one,
                                         const efficient_attention_options& two);
ATTNSCALE_EXPORT void check_same_options(const linear_attention_options& one,
                                         const linear_attention_options& two);
ATTNSCALE_EXPORT void check_same_options(const cosformer_attention_options& one,
                                         const cosformer_attention_options& two);
ATTNSCALE_EXPORT void check_same_options(const performer_attention_options& one,
                                         const performer_attention_options& two);

namespace detail {

template <class... Arrays>
using linear_compute_t = std::common_type_t<typename Arrays::value_type...>;

template <class Options>
void check_features(const Options& options, const char* name, const strided_array& rows) {
  if constexpr (std::is_same_v<Options, linear_attention_options>)
    if (options.feature_map == linear_feature_map::given) check_given(name, rows);
}

/// A checked call of a family with its options.
struct linear_description {
  linear_inputs in;
  std::optional<std::int64_t> offset;  ///< query i sees keys 0 ... i + offset; absent: all
  linear_family family;

  template <class Options>
  linear_description(strided_array query, strided_array key, strided_array value,
                     const Options& options)
      : in(std::move(query), std::move(key), std::move(value), options.enable_gqa) {
    const causal_alignment causal = check_causal(options);
    if (causal != causal_alignment::none)
      offset = causal == causal_alignment::bottom_right ? in.n_keys() - in.n_queries()
               : causal == causal_alignment::offset     ? options.causal_offset
                                                        : 0;
    check_threads(options.num_threads);
    check_features(options, "query", in.query);
    check_features(options, "key", in.key);
    family = family_of(options, in.head_dim());
    family.check_positions(std::max(in.n_queries(), in.n_keys()));
  }
};

/// Output of every query, which reads `more.sums` and its visible keys.
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

}  // namespace detail
}  // namespace attnscale
