// SPDX-License-Identifier: BSD-3-Clause
//
// The full matrix of attention weights: for pictures, tests and short texts. The kernels run on
// values that are unit vectors; entry j of an output row is weight j.
#pragma once

#include <cstdint>
#include <new>
#include <string>
#include <utility>

#include "attnscale/attention.hpp"
#include "attnscale/detail/call_description.hpp"
#include "attnscale/detail/refuse.hpp"

namespace attnscale {

/// A matrix of weights that would take more bytes than the caller allows.
class weights_too_large : public std::bad_alloc {
 public:
  explicit weights_too_large(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

/// Refuses a matrix of more than `most` bytes, before anything is computed.
ATTNSCALE_EXPORT void check_weights_fit(const call_description& call, double most);

/// Writes the weights of a call without values, row-major, in the compute type.
ATTNSCALE_EXPORT void write_weights(const call_description& call, void* weights);

/// Weight of every key for every query: (..., heads, n_queries, n_keys), 0 for hidden keys. Rows of
/// a softmax add up to 1 (with a sink, to 1 less its weight), rows without visible keys to 0. A
/// matrix larger than max_bytes throws attnscale::weights_too_large.
///
/// A softmax goes by tiles of keys, with the work of attention with 128 value channels; other
/// normalizers take all unit vectors at once: n_queries * n_keys^2 per head.
template <detail::array_argument Q, detail::array_argument K>
auto attention_weights(const Q& query, const K& key, const attention_options& options = {},
                       std::int64_t max_bytes = std::int64_t{1} << 32) {
  detail::require_attention_arrays<Q, K>();
  using T = detail::compute_t<Q, K>;
  detail::check_at_least("max_bytes", max_bytes, 1);
  const call_description call({query, 2}, {key, 2}, {}, options);
  check_weights_fit(call, static_cast<double>(max_bytes));
  auto weights = detail::new_array<T>(call.rows(), {call.n_keys()});
  write_weights(call, weights.data());
  return weights;
}

}  // namespace attnscale
