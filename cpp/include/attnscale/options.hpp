// SPDX-License-Identifier: BSD-3-Clause
//
// Options of every attention call, with the names and meanings of the Python API.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "attnscale/dense_array.hpp"
#include "attnscale/detail/intervals.hpp"
#include "attnscale/detail/strided_array.hpp"
#include "attnscale/distance_table.hpp"
#include "attnscale/normalizer.hpp"
#include "attnscale/number_or_array.hpp"
#include "attnscale/problem.hpp"
#include "attnscale/scale_law.hpp"

namespace attnscale {

/// Normalization of every row of queries and keys to length 1 (l2) or sqrt(head_dim) (rms) before
/// the product; rows of zeros stay zero.
enum class row_norm : std::uint8_t { none, l2, rms };

/// A boolean mask (true: the key takes part) or an additive one (of a floating-point type; -inf, or
/// any number at or below half of the type's lowest finite number, hides the key) that broadcasts
/// to (..., heads, n_queries, n_keys). Holds a copy, as all options do; a temporary container is
/// moved. std::cref(mask) avoids the copy of a large mask: a container or view that has to outlive
/// the options.
class attention_mask {
 public:
  attention_mask() = default;  ///< no mask

  template <class E>
  requires std::derived_from<E, xt::xexpression<E>> attention_mask(E mask) {
    using element = std::remove_cv_t<typename E::value_type>;
    auto kept = std::make_shared<dense_array<element>>(std::move(mask));
    refer(*kept);
    owner_ = std::move(kept);
  }

  template <class A>
  requires strided_container<std::remove_const_t<A>> attention_mask(
      std::reference_wrapper<A> mask) {
    refer(mask.get());
  }

  mask_kind kind() const { return kind_; }
  const strided_array& array() const { return array_; }

 private:
  template <class A>
  void refer(const A& mask) {
    using element = std::remove_cv_t<typename A::value_type>;
    static_assert(std::same_as<element, bool> || std::same_as<element, float> ||
                      std::same_as<element, double> || half_width<element>,
                  "attn_mask must hold bool, float, double, float16 or bfloat16");
    kind_ = std::same_as<element, bool> ? mask_kind::boolean : mask_kind::additive;
    array_ = strided_array(mask, 2);
  }

  strided_array array_;
  mask_kind kind_ = mask_kind::none;
  std::shared_ptr<const void> owner_;
};

/// attention_options::scale: a number, an array, or a law of a count per query, by type or by
/// spelling.
class scale_option {
 public:
  scale_option() = default;  ///< default

  template <class E>
  requires std::constructible_from < number_or_array<double>,
  const E& > scale_option(const E& numbers) : numbers_(numbers) {}

  template <class L>
  requires(!std::constructible_from<number_or_array<double>, const L&> &&
           std::constructible_from<scale_law, const L&>) scale_option(const L& law)
      : law_(law) {}

  /// A law as scale_law::parse reads it: "log_n(base=512)".
  template <class Text>
  requires std::convertible_to<const Text&, std::string_view> scale_option(const Text& law)
      : law_(scale_law::parse(law)) {}

  explicit operator bool() const { return law_ || numbers_; }
  const number_or_array<double>& numbers() const { return numbers_; }
  const std::optional<scale_law>& law() const { return law_; }

 private:
  number_or_array<double> numbers_;
  std::optional<scale_law> law_;
};

/// Options of a call, with designated initialisers: attention(q, k, v, {.scale = 0.1, .is_causal =
/// true}). A key is visible if is_causal / causal, attn_mask, window, key_lengths and document_ids
/// all allow it. The score is softcap(scale * distance_scale * (q . k)) + distance_bias + an
/// additive mask. Options hold copies (except of a mask in std::cref), so a function may create and
/// return them.
struct attention_options {
  /// Multiplier of q . k: a number, an array that broadcasts to (..., heads, n_queries), or a law,
  /// as laws::log_n{} or "log_n(base=512)", whose n is counted for each query (scale_law::counts).
  /// For a law of the distance use distance_scale and distance_bias. Default: 1 / sqrt(head_dim).
  scale_option scale{};
  bool is_causal = false;  ///< short for causal = top_left
  causal_alignment causal = causal_alignment::none;
  std::int64_t causal_offset = 0;  ///< only for causal_alignment::offset
  attention_mask attn_mask{};
  key_window window{};
  /// Integers that broadcast to the batch axes; keys at or after this index are hidden.
  number_or_array<std::int64_t> key_lengths{};
  /// Integers that broadcast to (..., n_keys): the document of each key, as runs of equal numbers.
  /// A query belongs to the document of the key that it is aligned with, and sees only that
  /// document; masks and the n of a law count within it, as if each document had its own call.
  number_or_array<std::int64_t> document_ids{};
  distance_table distance_scale{};    ///< multiplies q . k
  distance_table distance_bias{};     ///< added to the score after soft-cap; ALiBi, T5
  bool enable_gqa = false;            ///< query head h uses key head h / (heads / kv_heads)
  std::optional<double> softcap{};    ///< c from 1e-37 to 1e37: score <- c tanh(score / c)
  row_norm qk_norm = row_norm::none;  ///< for queries and keys; the scale still applies
  normalizer_choice normalizer{};     ///< default softmax; see attnscale::normalizers
  int num_threads = 0;                ///< 0: attnscale::num_threads()
  /// Called now and then on the calling thread; if it returns true, the call throws
  /// attnscale::interrupted. An exception from it ends the call and reaches the caller.
  std::function<bool()> interrupted{};
};

}  // namespace attnscale
