// SPDX-License-Identifier: BSD-3-Clause
//
// Local and global attention: neighbours, and a few positions that everybody sees. Names and
// meanings are those of the Python package, attnscale.variants.
//
//   auto output = attnscale::local_global_attention(q, k, v, {.radius = 64, .global_tokens = 4});
//
// Arrays are those of attention(): of float or double, with any strides, read in place. Arguments
// that do not fit are a std::invalid_argument.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>

#include "attnscale/attention.hpp"
#include "attnscale/describe.hpp"
#include "attnscale/intervals.hpp"
#include "attnscale/options.hpp"
#include "attnscale/strided_array.hpp"

namespace attnscale {

/// is_causal ... interrupted are what they are in attention_options.
struct local_global_attention_options {
  /// Position i sees i - radius ... i + radius; causal: i - radius ... i. Has to be given.
  std::int64_t radius = -1;
  std::int64_t global_tokens = 0;  ///< the first positions, which see all and are seen by all
  /// Not given: 1 / sqrt(head_dim). No law: its n would be that of a part of the keys.
  std::optional<double> scale{};
  bool is_causal = false;
  causal_alignment causal = causal_alignment::none;  ///< query i goes with key i
  std::int64_t causal_offset = 0;
  bool enable_gqa = false;
  int num_threads = 0;
  std::function<bool()> interrupted{};
};

namespace detail {

/// Whether queries see no later keys. Query i has to be aligned with key i.
inline bool is_one_way(const local_global_attention_options& options) {
  check_causal(options);
  if (options.causal == causal_alignment::offset && options.causal_offset != 0)
    refuse("causal must align query i with key i here, which is causal_offset = 0, got " +
           text_of(options.causal_offset));
  return options.is_causal || options.causal != causal_alignment::none;
}

inline void check_local_global(const strided_array& query, const strided_array& key,
                               const local_global_attention_options& options) {
  if (query.extent(2) != key.extent(2))
    refuse("query and key must have the same number of rows, got " + text_of(query.extent(2)) +
           " and " + text_of(key.extent(2)));
  check_at_least("global_tokens", options.global_tokens, 0);
  check_at_least("radius", options.radius, 0);
  if (options.global_tokens > query.extent(2))
    refuse("global_tokens must be at most the " + text_of(query.extent(2)) + " positions, got " +
           text_of(options.global_tokens));
  if (options.scale && !std::isfinite(*options.scale))
    refuse("scale must be finite, got " + text_of(*options.scale));
  check_threads(options.num_threads);
}

/// One call whose output goes where `out` is, with the log-sum-exp of each row.
template <class T>
dense_array<T> attend_into(const call_description& call, const strided_array& out) {
  dense_array<T> lse = new_array<T>(call.leading(), {call.n_queries()});
  attention_problem problem;
  problem.value = call.value().layout();
  problem.value_dim = call.value_dim();
  problem.output = out.layout();
  problem.statistics[statistic::lse] = lse.data();
  call.fill(problem);
  call.fill_rule(problem, {statistic::lse});
  std::size_t head = 0;
  for_each_index(call.leading(), [&](const extents& index) {
    problem.heads[head++].output = const_cast<void*>(out.at(index, call.leading()));
  });
  run(problem, call.how());
  return lse;
}

/// ln(exp(a) + exp(b)); NaN if one is.
inline double log_add_exp(double a, double b) {
  if (a == b) return a + std::log(2.0);  // infinities too
  return std::fmax(a, b) + std::log1p(std::exp(-std::abs(a - b)));
}

/// A row over some keys, with the log-sum-exp `near`, becomes the row over those of `far` too.
template <class T>
void merge_output(T* row, T near, const T* far, T far_lse, std::int64_t value_dim) {
  double total = log_add_exp(double(near), double(far_lse));
  if (total == -std::numeric_limits<double>::infinity()) total = 0;  // no weight: all stay 0
  const T mine = static_cast<T>(std::exp(double(near) - total));
  const T theirs = static_cast<T>(std::exp(double(far_lse) - total));
  for (std::int64_t c = 0; c < value_dim; ++c) {
    const T weighted = row[c] * mine;
    row[c] = weighted + far[c] * theirs;
  }
}

/// Query, key and value of one call, and its output.
struct local_global_arrays {
  strided_array query, key, value, output;
};

/// Rows that are not global see the global keys, too: `near` is the log-sum-exp of what `output`
/// has of them. Done by blocks, so that few outputs are in memory twice.
template <class T>
void add_global_keys(const local_global_arrays& in, const extents& leading, std::int64_t first,
                     const dense_array<T>& near, const attention_options& options) {
  constexpr std::int64_t most = 1 << 18;
  const std::int64_t n = in.query.extent(2) - first, dim = in.value.extent(1);
  const std::int64_t heads = count_entries(leading);
  const std::int64_t block =
      std::max<std::int64_t>(64, most / std::max<std::int64_t>(1, heads * dim));
  const strided_array key = in.key.rows(0, first), value = in.value.rows(0, first);
  for (std::int64_t start = 0; start < n; start += block) {
    const std::int64_t end = std::min(n, start + block);
    const auto far =
        attend<T>(call_description(in.query.rows(first + start, first + end), key, value, options),
                  {statistic::lse});
    const T* row = far.output->data();
    const T* lse = far.lse->data();
    std::int64_t head = 0;
    for_each_index(leading, [&](const extents& index) {
      auto* const out = static_cast<T*>(const_cast<void*>(in.output.at(index, leading)));
      const T* const mine = near.data() + head++ * n;
      for (std::int64_t i = start; i < end; ++i, row += dim, ++lse)
        merge_output(out + (first + i) * dim, mine[i], row, *lse, dim);
    });
  }
}

template <class T>
dense_array<T> local_global(local_global_arrays in, const local_global_attention_options& given) {
  const extents leading = leading_shape(
      {{"query", &in.query}, {"key", &in.key}, {"value", &in.value}}, given.enable_gqa);
  check_matrices(in.query, in.key, in.value);
  check_local_global(in.query, in.key, given);
  const bool one_way = is_one_way(given);
  const std::int64_t n = in.query.extent(2), first = given.global_tokens;
  attention_options options{.enable_gqa = given.enable_gqa,
                            .num_threads = given.num_threads,
                            .interrupted = given.interrupted};
  if (given.scale) options.scale = *given.scale;
  dense_array<T> output = new_array<T>(leading, {n, in.value.extent(1)});
  in.output = strided_array(output, 2);
  attention_options local = options, global = options;
  local.window = {given.radius, one_way ? 0 : given.radius};
  global.is_causal = one_way;
  if (first > 0)
    attend_into<T>(call_description(in.query.rows(0, first), in.key, in.value, global),
                   in.output.rows(0, first));
  const auto near = attend_into<T>(call_description(in.query.rows(first, n), in.key.rows(first, n),
                                                    in.value.rows(first, n), local),
                                   in.output.rows(first, n));
  if (first > 0) add_global_keys<T>(in, leading, first, near, options);
  return output;
}

}  // namespace detail

/// Each position sees those within a radius and the global ones, which see all, in O(n (radius +
/// global_tokens)): Ainslie et al. 2020 (ETC), arXiv 2004.08483, with the global positions at the
/// front of the sequence and one softmax over both kinds of keys. There are as many queries as
/// keys.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V>
auto local_global_attention(const Q& query, const K& key, const V& value,
                            const local_global_attention_options& options) {
  detail::require_float_arrays<Q, K, V>();
  return detail::local_global<detail::compute_t<Q, K, V>>({{query, 2}, {key, 2}, {value, 2}, {}},
                                                          options);
}

}  // namespace attnscale
