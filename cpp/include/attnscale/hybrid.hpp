// SPDX-License-Identifier: BSD-3-Clause
//
// Hybrid layers: each head has its own kind of attention, given by its struct of options. Names and
// meanings follow the Python package, attnscale.variants.
//
//   const attnscale::attention_options exact{.scale = attnscale::laws::log_n{}};
//   const attnscale::linear_attention_options linear;
//   auto output = attnscale::hybrid(q, k, v, {exact, linear, linear, linear}, {.is_causal = true});
//
// Arrays as for attention(), of float or double, with any strides. Arguments that do not fit throw
// std::invalid_argument.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "attnscale/attention.hpp"
#include "attnscale/detail/intervals.hpp"
#include "attnscale/detail/strided_array.hpp"
#include "attnscale/linear_attention.hpp"
#include "attnscale/options.hpp"

namespace attnscale {

/// Options of attention(), efficient_attention(), linear_attention(), cosformer_attention() or
/// performer_attention(). Set the options that hybrid_options has there only.
using attention_kind =
    std::variant<attention_options, efficient_attention_options, linear_attention_options,
                 cosformer_attention_options, performer_attention_options>;

/// Options of all heads; as in attention_options.
struct hybrid_options {
  bool is_causal = false;
  causal_alignment causal = causal_alignment::none;
  std::int64_t causal_offset = 0;
  bool enable_gqa = false;
  int num_threads = 0;
  std::function<bool()> interrupted{};
};

namespace detail {

/// The rows of one head of an array, which groups of the `heads` heads may share.
template <class T, class A>
dense_array<T> rows_of_head(const A& array, std::size_t head, std::size_t heads) {
  if (array.dimension() < 3) return xt::cast<T>(array);
  const std::size_t own = array.shape()[array.dimension() - 3];
  const std::size_t at = own == 1 ? 0 : head / (heads / own);
  return xt::cast<T>(
      xt::strided_view(array, {xt::ellipsis(), xt::range(at, at + 1), xt::all(), xt::all()}));
}

/// Refuses a kind that sets an option of hybrid_options, which would be ignored.
template <class Kind>
void check_kind(const Kind& kind, std::size_t head) {
  std::visit(
      [head](const auto& own) {
        const char* const said = own.is_causal                          ? "is_causal"
                                 : own.causal != causal_alignment::none ? "causal"
                                 : own.causal_offset != 0               ? "causal_offset"
                                 : own.enable_gqa                       ? "enable_gqa"
                                 : own.num_threads != 0                 ? "num_threads"
                                 : own.interrupted                      ? "interrupted"
                                                                        : nullptr;
        if (said)
          refuse("kinds[" + text_of(head) + "]." + said +
                 " must be set in hybrid_options, which apply to all heads");
      },
      kind);
}

/// The call for each type of options.
template <class T>
dense_array<T> attend_by(const attention_kind& kind, const hybrid_options& options,
                         const dense_array<T>& query, const dense_array<T>& key,
                         const dense_array<T>& value) {
  return std::visit(
      [&](auto own) -> dense_array<T> {
        using kind_options = decltype(own);
        own.is_causal = options.is_causal;
        own.causal = options.causal;
        own.causal_offset = options.causal_offset;
        own.enable_gqa = false;
        own.num_threads = options.num_threads;
        own.interrupted = options.interrupted;
        if constexpr (std::is_same_v<kind_options, attention_options>)
          return attention(query, key, value, own);
        else
          return linear_call(query, key, value, own);
      },
      kind);
}

}  // namespace detail

/// One call in which head h has attention of kind kinds[h]: (..., heads, n_queries, value_dim).
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V>
auto hybrid(const Q& query, const K& key, const V& value, const std::vector<attention_kind>& kinds,
            const hybrid_options& options = {}) {
  detail::require_float_arrays<Q, K, V>();
  using T = detail::compute_t<Q, K, V>;
  const strided_array q(query, 2), k(key, 2), v(value, 2);
  const extents leading =
      leading_shape({{"query", &q}, {"key", &k}, {"value", &v}}, options.enable_gqa);
  check_matrices(q, k, v);
  if (leading.empty())
    detail::refuse("query must have an axis of heads, got shape " + detail::text_of(q.shape()));
  const auto heads = static_cast<std::size_t>(leading.back());
  if (kinds.size() != heads)
    detail::refuse("kinds must hold one kind for each of the " + detail::text_of(heads) +
                   " heads, got " + detail::text_of(kinds.size()));
  detail::check_causal(options);
  detail::check_threads(options.num_threads);
  for (std::size_t head = 0; head < heads; ++head) detail::check_kind(kinds[head], head);
  dense_array<T> output = detail::new_array<T>(leading, {q.extent(2), v.extent(1)});
  const std::size_t rows = heads ? output.size() / heads : 0;
  const auto size = static_cast<std::size_t>(q.extent(2) * v.extent(1));
  for (std::size_t head = 0; head < heads; ++head) {
    const dense_array<T> found = detail::attend_by<T>(
        kinds[head], options, detail::rows_of_head<T>(query, head, heads),
        detail::rows_of_head<T>(key, head, heads), detail::rows_of_head<T>(value, head, heads));
    for (std::size_t from = 0; from < rows; from += size)
      std::copy_n(found.data() + from, size, output.data() + from * heads + head * size);
  }
  return output;
}

}  // namespace attnscale
