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

#include <cstdint>
#include <functional>
#include <optional>

#include "attnscale/attention.hpp"
#include "attnscale/detail/describe.hpp"
#include "attnscale/detail/intervals.hpp"
#include "attnscale/detail/strided_array.hpp"
#include "attnscale/options.hpp"

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

/// Writes it to an output of the type of the arithmetic, row-major, of the shape that
/// check_local_global() says.
ATTNSCALE_EXPORT extents check_local_global(const strided_array& query, const strided_array& key,
                                            const strided_array& value,
                                            const local_global_attention_options& options);
ATTNSCALE_EXPORT void run_local_global(const strided_array& query, const strided_array& key,
                                       const strided_array& value, const strided_array& output,
                                       const local_global_attention_options& options);

/// Each position sees those within a radius and the global ones, which see all, in O(n (radius +
/// global_tokens)): Ainslie et al. 2020 (ETC), arXiv 2004.08483, with the global positions at the
/// front of the sequence and one softmax over both kinds of keys. There are as many queries as
/// keys.
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
