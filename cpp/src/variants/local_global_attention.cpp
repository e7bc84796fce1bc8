// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/local_global_attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "attnscale/detail/refuse.hpp"

namespace attnscale {
namespace {

using detail::refuse;
using detail::text_of;

/// Whether queries see no later keys. Query i has to be aligned with key i.
bool is_one_way(const local_global_attention_options& options) {
  detail::check_causal(options);
  if (options.causal == causal_alignment::offset && options.causal_offset != 0)
    refuse("causal must align query i with key i here, which is causal_offset = 0, got " +
           text_of(options.causal_offset));
  return options.is_causal || options.causal != causal_alignment::none;
}

void check_options(const strided_array& query, const strided_array& key,
                   const local_global_attention_options& options) {
  if (query.extent(2) != key.extent(2))
    refuse("query and key must have the same number of rows, got " + text_of(query.extent(2)) +
           " and " + text_of(key.extent(2)));
  detail::check_at_least("global_tokens", options.global_tokens, 0);
  detail::check_at_least("radius", options.radius, 0);
  if (options.global_tokens > query.extent(2))
    refuse("global_tokens must be at most the " + text_of(query.extent(2)) + " positions, got " +
           text_of(options.global_tokens));
  if (options.scale && !std::isfinite(*options.scale))
    refuse("scale must be finite, got " + text_of(*options.scale));
  detail::check_threads(options.num_threads);
}

/// ln(exp(a) + exp(b)); NaN if one is.
double log_add_exp(double a, double b) {
  if (a == b) return a + std::log(2.0);  // also for infinities
  return std::fmax(a, b) + std::log1p(std::exp(-std::abs(a - b)));
}

/// Merges a row over some keys, with the log-sum-exp `near`, with the row over the keys of `far`.
template <class T>
void merge_output(T* row, T near, const T* far, T far_lse, std::int64_t value_dim) {
  double total = log_add_exp(double(near), double(far_lse));
  if (total == -std::numeric_limits<double>::infinity()) total = 0;  // zero weight: all stay 0
  const T mine = static_cast<T>(std::exp(double(near) - total));
  const T theirs = static_cast<T>(std::exp(double(far_lse) - total));
  for (std::int64_t c = 0; c < value_dim; ++c) {
    const T weighted = row[c] * mine;
    row[c] = weighted + far[c] * theirs;
  }
}

/// Writes the output of a call and returns the log-sum-exp of its rows.
template <class T>
std::vector<T> attend(call_description call, const strided_array& output) {
  std::vector<T> lse(static_cast<std::size_t>(count_entries(call.rows())));
  row_outputs rows;
  rows[statistic::lse] = lse.data();
  call.set_output(output);
  call.attend(rows, {statistic::lse});
  return lse;
}

/// Query, key and value of one call, and its output.
struct local_global_arrays {
  strided_array query, key, value, output;
};

/// Adds the global keys to rows that are not global; `near` is the log-sum-exp of the weights
/// already in `output`. In blocks, so that few outputs are in memory twice.
template <class T>
void add_global_keys(const local_global_arrays& in, const extents& leading, std::int64_t first,
                     const std::vector<T>& near, const attention_options& options) {
  constexpr std::int64_t most = 1 << 18;
  const std::int64_t n = in.query.extent(2) - first, dim = in.value.extent(1);
  const std::int64_t heads = count_entries(leading);
  const std::int64_t block =
      std::max<std::int64_t>(64, most / std::max<std::int64_t>(1, heads * dim));
  const strided_array key = in.key.rows(0, first), value = in.value.rows(0, first);
  for (std::int64_t start = 0; start < n; start += block) {
    const std::int64_t end = std::min(n, start + block);
    call_description call(in.query.rows(first + start, first + end), key, value, options);
    const extents shape = joined(call.rows(), {dim});
    row_array<T> output{{shape.begin(), shape.end()}, {}};
    output.numbers.resize(static_cast<std::size_t>(count_entries(shape)));
    const std::vector<T> all = attend<T>(call, {output, 2});
    const T *row = output.numbers.data(), *lse = all.data();
    std::int64_t head = 0;
    for_each_index(leading, [&](const extents& index) {
      auto* const out = static_cast<T*>(in.output.place(index, leading));
      const T* const mine = near.data() + head++ * n;
      for (std::int64_t i = start; i < end; ++i, row += dim, ++lse)
        merge_output(out + (first + i) * dim, mine[i], row, *lse, dim);
    });
  }
}

template <class T>
void local_global(const local_global_arrays& in, const local_global_attention_options& given) {
  const bool one_way = is_one_way(given);
  const std::int64_t n = in.query.extent(2), first = given.global_tokens;
  attention_options options{.enable_gqa = given.enable_gqa,
                            .num_threads = given.num_threads,
                            .interrupted = given.interrupted};
  if (given.scale) options.scale = *given.scale;
  attention_options local = options, global = options;
  local.window = {given.radius, one_way ? 0 : given.radius};
  global.is_causal = one_way;
  if (first > 0)
    attend<T>({in.query.rows(0, first), in.key, in.value, global}, in.output.rows(0, first));
  const std::vector<T> near =
      attend<T>({in.query.rows(first, n), in.key.rows(first, n), in.value.rows(first, n), local},
                in.output.rows(first, n));
  if (first > 0) add_global_keys<T>(in, in.output.leading(), first, near, options);
}

}  // namespace

extents check_local_global(const strided_array& query, const strided_array& key,
                           const strided_array& value,
                           const local_global_attention_options& options) {
  const extents leading =
      leading_shape({{"query", &query}, {"key", &key}, {"value", &value}}, options.enable_gqa);
  check_matrices(query, key, value);
  check_options(query, key, options);
  is_one_way(options);
  return joined(leading, {query.extent(2), value.extent(1)});
}

void run_local_global(const strided_array& query, const strided_array& key,
                      const strided_array& value, const strided_array& output,
                      const local_global_attention_options& options) {
  if (output.layout().type == element_type::float64)
    local_global<double>({query, key, value, output}, options);
  else
    local_global<float>({query, key, value, output}, options);
}

}  // namespace attnscale
