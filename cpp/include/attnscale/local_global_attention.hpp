// SPDX-License-Identifier: BSD-3-Clause
//
// Local and global attention: neighbours, and a few positions that all others see. Names and
// meanings follow the Python package, attnscale.variants.
//
//   auto output = attnscale::local_global_attention(q, k, v, {.radius = 64, .global_tokens = 4});
//
// Arrays as for attention(), of float or double, with any strides, read in place. Arguments that do
// not fit throw std::invalid_argument.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "attnscale/attention.hpp"
#include "attnscale/detail/call_description.hpp"
#include "attnscale/detail/intervals.hpp"
#include "attnscale/detail/strided_array.hpp"
#include "attnscale/options.hpp"

namespace attnscale {

/// Options of local_global_attention; is_causal to interrupted are as in attention_options.
struct local_global_attention_options {
  /// Position i sees i - radius ... i + radius; causal: i - radius ... i. Has to be given.
  std::int64_t radius = -1;
  std::int64_t global_tokens = 0;  ///< the first positions, which see all and are seen by all
  /// Default 1 / sqrt(head_dim). Not a law: its n would count only a part of the keys.
  std::optional<double> scale{};
  bool is_causal = false;
  causal_alignment causal = causal_alignment::none;  ///< query i is aligned with key i
  std::int64_t causal_offset = 0;
  bool enable_gqa = false;
  int num_threads = 0;
  std::function<bool()> interrupted{};
};

/// Checks the call and returns the shape of its output; then writes an output of that shape,
/// row-major, of the compute type.
ATTNSCALE_EXPORT extents check_local_global(const strided_array& query, const strided_array& key,
                                            const strided_array& value,
                                            const local_global_attention_options& options);
ATTNSCALE_EXPORT void run_local_global(const strided_array& query, const strided_array& key,
                                       const strided_array& value, const strided_array& output,
                                       const local_global_attention_options& options);

/// Attention of each position to those within a radius and to the global ones; global positions see
/// all. Time O(n (radius + global_tokens)). Ainslie et al. 2020 (ETC), arXiv 2004.08483, with the
/// global positions at the front of the sequence and one softmax over both kinds of keys. n_queries
/// = n_keys.
template <detail::array_argument Q, detail::array_argument K, detail::array_argument V>
auto local_global_attention(const Q& query, const K& key, const V& value,
                            const local_global_attention_options& options) {
  detail::require_float_arrays<Q, K, V>();
  const strided_array q(query, 2), k(key, 2), v(value, 2);
  auto output =
      detail::new_array<detail::compute_t<Q, K, V>>(check_local_global(q, k, v, options), {});
  run_local_global(q, k, v, {output, 2}, options);
  return output;
}

}  // namespace attnscale
