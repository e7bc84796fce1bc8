// SPDX-License-Identifier: BSD-3-Clause
//
// From the arrays and options of a call of linear attention to the core's problem: families, the
// checks of shapes, the walk over batches and heads, and the sums over keys that outlive a call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "attnscale/detail/describe.hpp"
#include "attnscale/detail/linear_form.hpp"
#include "attnscale/linear_options.hpp"
#include "attnscale/number_or_array.hpp"

namespace attnscale {

/// How rows become features, and what sums are divided by.
struct ATTNSCALE_EXPORT linear_family {
  detail::feature_map map = detail::feature_map::given;
  detail::linear_norm norm = detail::linear_norm::weights;
  double scale = 1;
  row_array<double> projection{};  ///< of `projected`: (head_dim, features)
  double norm_factor = 0, shift = 0;
  std::int64_t max_length = 1;  ///< of `turned`: a quarter of a turn takes so many positions

  /// Features of a row.
  std::int64_t features(std::int64_t head_dim) const;
  /// The core's form, which points at the projection.
  detail::linear_form form(std::int64_t head_dim, std::int64_t value_dim) const;
  /// Of `turned`: cosine and sine at n positions; otherwise nothing.
  std::vector<double> turn(std::int64_t first, std::int64_t n) const;
  /// Beyond M the cosine, and with it the weight, would be negative.
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

/// Rows in pairs: query i sees the keys 0 ... i.
ATTNSCALE_EXPORT std::int64_t paired_rows(const linear_inputs& in);

/// Features that are given: a negative one would make weights negative.
ATTNSCALE_EXPORT void check_given(const char* name, const strided_array& features);

/// A gradient by the output of a call.
ATTNSCALE_EXPORT void check_grad(const strided_array& grad, const linear_inputs& in);

/// Log-decays as (..., heads, n), all of them there.
ATTNSCALE_EXPORT row_array<double> read_decay(const number_or_array<double>& log_decay,
                                              const extents& leading, std::int64_t n);

/// Sums over keys of every head, in double: (..., heads, features), twice, and (..., heads,
/// features, value_dim).
struct head_sums {
  row_array<double> reference{}, total{}, products{};
};

/// The arrays of one call of the core: query and output, key and value, or all of them.
struct linear_arrays {
  strided_array query{}, key{}, value{}, output{}, decay{};
  const head_sums* sums = nullptr;
  std::int64_t n_summed = 0;     ///< keys of `sums`
  std::int64_t first_query = 0;  ///< positions of the first rows
  std::int64_t first_key = 0;
};

/// Calls the core on every head of `leading`.
ATTNSCALE_EXPORT void run_linear(const linear_family& family, const linear_arrays& arrays,
                                 const extents& leading, std::optional<std::int64_t> offset,
                                 const execution& how);

/// Gradients of each head, where the core writes them.
struct linear_gradient_arrays {
  strided_array grad, query, key, value;
  strided_array decay{}, of_decay{};
};

ATTNSCALE_EXPORT void run_linear_gradients(const linear_family& family, const linear_inputs& in,
                                           const linear_gradient_arrays& arrays,
                                           std::optional<std::int64_t> offset,
                                           const execution& how);

/// Keys and values that a state takes in.
struct ATTNSCALE_EXPORT new_keys {
  strided_array key, value;
  extents leading;  ///< (..., heads) of their sums

  new_keys(strided_array k, strided_array v);
  std::int64_t n() const { return key.extent(2); }
};

/// Sums over keys, and what their arrays looked like.
struct ATTNSCALE_EXPORT kept_sums {
  extents key_shape, value_shape;  ///< of the first keys, whose number is left out as 0
  head_sums sums;
  std::int64_t n_keys = 0;

  bool any() const { return !key_shape.empty(); }
  const head_sums* sums_or_null() const { return any() ? &sums : nullptr; }
  std::int64_t value_dim() const { return sums.products.extents.back(); }

  /// Refuses keys that cannot come after those before; and for state-space duality.
  void check_shapes(const new_keys& keys, bool enable_gqa) const;
  void check_state_shape(const new_keys& keys) const;
  /// (..., heads) of what queries read.
  extents leading_of(const strided_array& query, bool enable_gqa) const;
  extents leading_of_ssd(const strided_array& query, bool enable_gqa) const;
  /// These and those of keys. A new one: an interrupted call leaves the state as it was.
  kept_sums with(const new_keys& keys, const linear_family& family, const strided_array& decay,
                 const execution& how) const;
  /// The outputs of queries that see those keys, the last query beside the last key.
  void read(const linear_family& family, const strided_array& query, const extents& leading,
            const strided_array& output, const execution& how) const;
  /// The sums over the keys of both, those of `two` after one's own.
  kept_sums merged(const kept_sums& two, const linear_family& family) const;
};

/// The family of a state: no key to come makes exp(x) of elu(x) + 1 vanish.
ATTNSCALE_EXPORT linear_family state_family(linear_family family);

/// A state has no causal form.
ATTNSCALE_EXPORT void refuse_causal(bool is_causal, causal_alignment causal);

/// Sums of features that other options made are of another kind: they do not add up.
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

/// A call of a family with options of its own, checked.
struct linear_description {
  linear_inputs in;
  std::optional<std::int64_t> offset;  ///< query i sees the keys 0 ... i + this; none: all of them
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

/// The output of every query, which reads `more.sums` and the keys that it sees.
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
