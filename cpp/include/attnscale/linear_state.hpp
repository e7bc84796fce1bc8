// SPDX-License-Identifier: BSD-3-Clause
//
// State for decoding instead of keys and values: sums whose size does not depend on the number of
// keys.
//
//   attnscale::linear_state state;
//   state.update(k, v);                      // adds keys
//   auto rows = state.read(q);               // queries that see all of them
//   auto next = state.extend(q2, k2, v2);    // causal rows of the next chunk, which is added
//
// A call that throws leaves the state as it was.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "attnscale/detail/linear_call.hpp"

namespace attnscale {

namespace detail {

/// head_dim of future keys, if the options determine it.
template <class Options>
std::int64_t known_head_dim(const Options& options) {
  if constexpr (std::is_same_v<Options, performer_attention_options>)
    if (options.projection && options.projection->dimension() > 0)
      return static_cast<std::int64_t>(options.projection->shape().back());
  return 1;
}

/// Outputs of queries that see all keys of a state.
template <class T, class Options>
dense_array<T> read_sums(const linear_family& family, const state_sums& kept,
                         const strided_array& query, const extents& leading,
                         const Options& options) {
  auto output = new_array<T>(leading, {query.extent(2), kept.value_dim()});
  kept.read(family, query, leading, {output, 2}, execution_of(options));
  return output;
}

}  // namespace detail

/// Keys and values of a family so far, as the sums that later queries read. Options are those of
/// the family's call without causal ones: each query sees all keys so far.
template <class Options>
class linear_time_state {
 public:
  explicit linear_time_state(Options options = {}) : options_(std::move(options)) {
    detail::check_causal(options_);
    refuse_causal(options_.is_causal, options_.causal);
    detail::check_threads(options_.num_threads);
    family_for(detail::known_head_dim(options_));
  }

  /// Number of keys so far.
  std::int64_t n_keys() const { return sums_.n_keys; }

  /// Adds keys (..., kv_heads, n, head_dim) and values after the earlier ones.
  template <detail::array_argument K, detail::array_argument V>
  linear_time_state& update(const K& key, const V& value) {
    detail::require_float_arrays<K, V>();
    detail::check_features(options_, "key", {key, 0});
    const new_keys keys({key, 2}, {value, 2});
    take(keys, checked_family(keys));
    return *this;
  }

  /// Outputs (..., heads, n, value_dim) of queries that see all keys so far; the last query is at
  /// the last key.
  template <detail::array_argument Q>
  dense_array<typename Q::value_type> read(const Q& query) const {
    detail::require_float_arrays<Q>();
    detail::check_features(options_, "query", {query, 0});
    const strided_array rows(query, 2);
    const extents leading = sums_.leading_of(rows, options_.enable_gqa);
    return detail::read_sums<typename Q::value_type>(*family_, sums_, rows, leading, options_);
  }

  /// Causal outputs of a chunk with as many queries as keys: query i sees all keys so far and keys
  /// 0 ... i of the chunk, which is then added.
  template <detail::array_argument Q, detail::array_argument K, detail::array_argument V>
  auto extend(const Q& query, const K& key, const V& value) {
    detail::require_float_arrays<Q, K, V>();
    const linear_inputs in({query, 2}, {key, 2}, {value, 2}, options_.enable_gqa);
    const std::int64_t offset = paired_rows(in);
    detail::check_features(options_, "query", {query, 0});
    detail::check_features(options_, "key", {key, 0});
    const new_keys keys(in.key, in.value);
    const family_pointer family = checked_family(keys);
    auto output = detail::attend_linear<detail::linear_compute_t<Q, K, V>>(
        *family, in, offset, detail::execution_of(options_),
        {.sums = sums_.sums_or_null(),
         .n_summed = sums_.n_keys,
         .first_query = sums_.n_keys,
         .first_key = sums_.n_keys});
    take(keys, family);
    return output;
  }

  /// State over the keys of both, those of `other` last; neither is changed.
  linear_time_state merge(const linear_time_state& other) const {
    check_same_options(options_, other.options_);
    linear_time_state both = *this;
    if (!both.family_) both.family_ = other.family_;
    if (both.family_) both.sums_ = sums_.merged(other.sums_, *both.family_);
    return both;
  }

 private:
  using family_pointer = std::shared_ptr<const linear_family>;

  family_pointer family_for(std::int64_t head_dim) const {
    return std::make_shared<linear_family>(state_family(family_of(options_, head_dim)));
  }

  /// The family, after checking that these keys may come next.
  family_pointer checked_family(const new_keys& keys) const {
    sums_.check_shapes(keys, options_.enable_gqa);
    family_pointer family = family_ ? family_ : family_for(keys.key.extent(1));
    family->check_positions(sums_.n_keys + keys.n());
    return family;
  }

  void take(const new_keys& keys, family_pointer family) {
    sums_ = sums_.with(keys, *family, {}, detail::execution_of(options_));
    family_ = std::move(family);
  }

  Options options_;
  family_pointer family_;  ///< for the keys' head_dim; null before the first keys
  state_sums sums_;
};

/// State of each family whose weights do not decay.
using efficient_state = linear_time_state<efficient_attention_options>;
using linear_state = linear_time_state<linear_attention_options>;
using cosformer_state = linear_time_state<cosformer_attention_options>;
using performer_state = linear_time_state<performer_attention_options>;

/// The recurrent form of state-space duality: one matrix per head, whatever the number of keys.
class ssd_state {
 public:
  explicit ssd_state(ssd_options options = {}) : options_(std::move(options)) {
    detail::check_threads(options_.num_threads);
  }

  /// Number of keys so far.
  std::int64_t n_keys() const { return sums_.n_keys; }

  /// Decays the state and adds keys, one by one. log_decay: as for ssd().
  template <detail::array_argument K, detail::array_argument V>
  ssd_state& update(const K& key, const V& value, const number_or_array<double>& log_decay) {
    detail::require_float_arrays<K, V>();
    const new_keys keys({key, 2}, {value, 2});
    sums_.check_state_shape(keys);
    const row_array<double> decay = read_decay(log_decay, keys.leading, keys.n());
    take(keys, {decay, 1});
    return *this;
  }

  /// q^T S for every query (..., heads, n, head_dim).
  template <detail::array_argument Q>
  dense_array<typename Q::value_type> read(const Q& query) const {
    detail::require_float_arrays<Q>();
    const strided_array rows(query, 2);
    const extents leading = sums_.leading_of_ssd(rows, options_.enable_gqa);
    return detail::read_sums<typename Q::value_type>(family_of(options_, 0), sums_, rows, leading,
                                                     options_);
  }

  /// ssd() of the next chunk, which continues from the state and is added to it.
  template <detail::array_argument Q, detail::array_argument K, detail::array_argument V>
  auto extend(const Q& query, const K& key, const V& value,
              const number_or_array<double>& log_decay) {
    detail::require_float_arrays<Q, K, V>();
    const linear_inputs in({query, 2}, {key, 2}, {value, 2}, options_.enable_gqa);
    const std::int64_t offset = paired_rows(in);
    const new_keys keys(in.key, in.value);
    sums_.check_state_shape(keys);
    const row_array<double> decay = read_decay(log_decay, keys.leading, keys.n());
    auto output = detail::attend_linear<detail::linear_compute_t<Q, K, V>>(
        family_of(options_, 0), in, offset, detail::execution_of(options_),
        {.decay = {decay, 1}, .sums = sums_.sums_or_null(), .n_summed = sums_.n_keys});
    take(keys, {decay, 1});
    return output;
  }

 private:
  void take(const new_keys& keys, const strided_array& decay) {
    sums_ = sums_.with(keys, family_of(options_, 0), decay, detail::execution_of(options_));
  }

  ssd_options options_;
  state_sums sums_;
};

}  // namespace attnscale
