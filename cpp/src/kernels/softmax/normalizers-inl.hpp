// SPDX-License-Identifier: BSD-3-Clause
//
// Normalizers whose weights are functions of single scores and of a row's number, such as the sink
// of a softmax: one struct each, as contract-inl.hpp requires, chosen by with_weights(). The loops
// over scores are in weights-inl.hpp (exponentials: online-inl.hpp), those of the backward pass in
// gradient/. entmax and top-k, which need all scores of a row at once, are in sparse/.
#pragma once

#include "attnscale/types.hpp"
#include "kernels/numbers.hpp"
#include "kernels/simd/exp-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/softmax/contract-inl.hpp"
#include "kernels/softmax/online-inl.hpp"

namespace {

using attnscale::normalizer;
using attnscale::detail::ln2;
using attnscale::detail::log2e;

/// The largest weight over the sum, at most 1. The rounding error of a large score enters it as a
/// factor.
inline double at_most_one(double weight, double sum) {
  if (!(weight > 0 && sum > 0)) return 0;
  return weight < sum ? weight / sum : 1;
}

/// Softmax. A sink is one more weight, without a value.
struct softmax_weights : relative_weights {
  static constexpr bool is_exponential = true, adds_number = false;
  template <class T>
  static constexpr T first_reference = limits<T>::lowest;

  static double output_factor(const finished_row& row) {
    const double sink = row.number ? __builtin_exp2(*row.number * log2e - row.reference) : 0;
    const double sum = row.sum + sink;
    return sum == 0 ? 0 : 1 / sum;
  }
  static double output_power(const finished_row&) { return 0; }

  /// Weights 2^u, with all terms of gradient_rows, whose constants follow from the row's lse.
  template <class T, gradient_terms Terms>
  struct backward {
    vec<T> reference, remainder, constant, linear, square, weight;

    ATTNSCALE_INLINE explicit backward(const gradient_lanes<T>& row)
        : reference(load(row.reference)),
          remainder(load(row.remainder)),
          constant(load(row.constant)),
          linear(load(row.linear)),
          square(load(row.square)),
          weight(load(row.weight)) {}

    /// In two steps: the remainder holds the rounding error of a large reference.
    ATTNSCALE_INLINE vec<T> operator()(vec<T> above, vec<T>, vec<T>& gradient) const {
      const vec<T> u = clamp_exponent(above - remainder), p = exp2(u);
      vec<T> x = gradient + constant;
      if constexpr (Terms == gradient_terms::linear) x = fma(linear, u, x);
      if constexpr (Terms == gradient_terms::all) {
        x = fma(fma(square, u, linear), u, x);
        x = fma(weight, p, x);
      }
      gradient = p * x;
      return p;
    }
  };
};

/// Largest exponent for which 2^t needs no clamp.
template <class T>
constexpr T most_exponent = sizeof(T) == 4 ? T(120) : T(1000);

/// 1 / (1 + 2^t); 0 beyond the range of exp2. NaN is kept. Bounded: |t| is at most most_exponent.
template <bool Bounded, class T>
ATTNSCALE_INLINE vec<T> logistic(vec<T> t) {
  const vec<T> one = broadcast(T(1)), most = broadcast(most_exponent<T>);
  if constexpr (Bounded) return reciprocal(one + exp2(t));
  const vec<T> p = reciprocal(one + exp2(min_or(most, clamp_exponent(t))));
  return xsimd::select(t > most, broadcast(T(0)), p);
}

/// 1 / (1 + e^-(score + bias)).
struct sigmoid_weights : pointwise_traits {
  static constexpr bool follows_top = false, has_bounded_form = true, adds_number = true;
  template <class T>
  static constexpr T first_reference = T(0);

  template <class T>
  static ATTNSCALE_INLINE vec<T> unit(vec<T> reference) {
    return reference;
  }

  template <bool Masked, bool Bounded, class T>
  static ATTNSCALE_INLINE vec<T> weight(vec<T> s, const pointwise_lanes<T>& row, vec<T>& counted) {
    return counted = logistic<Bounded, T>(Masked ? -row.bias - s : fma(s, -row.scale, -row.bias));
  }
  static double output_factor(const finished_row& row) { return 1 + row.nan_or_zero(); }
  static double output_power(const finished_row&) { return 0; }
  static double weight_of_top(const finished_row& row) {
    return 1 / (1 + __builtin_exp(-ln2 * row.top - (row.number ? *row.number : 0)));
  }

  static row_constants backward_constants(const finished_row& row) {
    return {row.number ? -*row.number * log2e : 0, 1};
  }

  /// Weights factor / (1 + 2^-u).
  template <class T, gradient_terms>
  struct backward {
    vec<T> reference, factor;

    ATTNSCALE_INLINE explicit backward(const gradient_lanes<T>& row)
        : reference(load(row.reference)), factor(load(row.factor)) {}

    /// With e = 2^-|u|: 1 / (1 + e) or e / (1 + e), and their product.
    ATTNSCALE_INLINE vec<T> operator()(vec<T> u, vec<T>, vec<T>& gradient) const {
      const vec<T> one = broadcast(T(1)), e = exp2(clamp_exponent(-xsimd::abs(u)));
      const vec<T> large = factor / (one + e), small = e * large;
      gradient = gradient * small / (one + e);
      return xsimd::select(u < broadcast(T(0)), small, large);
    }
  };
};

/// Largest factor on weights and sums, as a power of two.
template <class T>
constexpr int most_power = sizeof(T) == 4 ? 120 : 1000;

/// max(score, 0)^Power times a factor, or over the sum. Scores and their powers may have any size:
/// weights are relative to 2^reference, an exact power of two. The reference is 0 while the largest
/// weight is neither large nor small, else next to it.
template <int Power>
struct relu_weights : pointwise_traits {
  static constexpr bool follows_top = true;
  static constexpr bool counts_scores = true;  // a weight may underflow beside the largest one
  static constexpr double moment_unit = ln2;
  template <class T>
  static constexpr T first_reference = T(-Power* most_power<T>);

  template <class T>
  static ATTNSCALE_INLINE vec<T> unit(vec<T> reference) {
    return exp2(reference * broadcast(T(-1) / T(Power)));
  }
  template <class T>
  static ATTNSCALE_INLINE vec_mask<T> is_behind(vec<T> reference, vec<T> top) {
    return top * unit(reference) > broadcast(Power == 2 ? T(16) : T(256));
  }
  /// Rare: scalar.
  template <class T>
  [[gnu::noinline]] static vec<T> reference_at(vec<T> top) {
    T lanes[width<T>];
    store(lanes, top);
    for (T& each : lanes) each = reference_at(each);
    return load(lanes);
  }
  template <class T>
  static T reference_at(T top) {
    if (!(top > T(0))) return first_reference<T>;
    const int power = __builtin_ilogb(static_cast<double>(top)), most = most_power<T>;
    const int most_weight = Power * (power < -most ? -most : power > most ? most : power);
    return most_weight >= -40 && most_weight < 8 ? T(0) : static_cast<T>(most_weight);
  }

  template <bool Masked, bool Bounded, class T>
  static ATTNSCALE_INLINE vec<T> weight(vec<T> s, const pointwise_lanes<T>& row, vec<T>& counted) {
    const vec<T> above = max_or(broadcast(T(0)), Masked ? s : s * row.scale);
    return counted = power(above * (row.unit * broadcast(T(ln2))));
  }
  static double output_factor(const finished_row& row) {
    if (row.number) return *row.number + row.nan_or_zero();
    return row.sum == 0 ? 0 : 1 / row.sum;
  }
  static double output_power(const finished_row& row) {
    return row.number && row.sum > 0 ? row.reference : 0;
  }
  static double weight_of_top(const finished_row& row) {
    const double score = ln2 * (row.top > 0 ? row.top : 0);
    if (row.number) return power(score) * *row.number;
    return at_most_one(power(score * __builtin_exp2(-row.reference / Power)), row.sum);
  }

  static row_constants backward_constants(const finished_row& row) {
    return {0, row.number ? 1 / *row.number : row.sum * __builtin_exp2(row.reference)};
  }

  /// Weights factor * max(score, 0)^Power.
  template <class T, gradient_terms>
  struct backward {
    vec<T> reference, constant, factor;

    ATTNSCALE_INLINE explicit backward(const gradient_lanes<T>& row)
        : reference(load(row.reference)), constant(load(row.constant)), factor(load(row.factor)) {}

    ATTNSCALE_INLINE vec<T> operator()(vec<T>, vec<T> score, vec<T>& gradient) const {
      const vec<T> zero = broadcast(T(0)), s = score * broadcast(T(ln2));
      const vec<T> x = (gradient + constant) * factor;
      // NaN is not below 0: it is kept.
      const vec_mask<T> below = score <= zero;
      gradient = xsimd::select(below, factor * zero, Power == 2 ? (s + s) * x : x);
      return xsimd::select(below, factor * zero, Power == 2 ? s * s * factor : s * factor);
    }
  };

 private:
  template <class X>
  static ATTNSCALE_INLINE X power(X x) {
    return Power == 2 ? x * x : x;
  }
};

/// max(e^score - 1, 0) over the sum of |e^score - 1| and eps, all relative to a reference >= 0.
struct softpick_weights : relative_weights, pointwise_traits {
  template <class T>
  static constexpr T first_reference = T(0);

  template <class T>
  static ATTNSCALE_INLINE vec<T> unit(vec<T> reference) {
    return exp2(clamp_exponent(-reference));
  }

  template <bool Masked, bool Bounded, class T>
  static ATTNSCALE_INLINE vec<T> weight(vec<T> s, const pointwise_lanes<T>& row, vec<T>& counted) {
    const vec<T> zero = broadcast(T(0));
    const vec<T> t = Masked ? s - row.reference : fma(s, row.scale, -row.reference);
    const exp2_parts<T> e = split_exp2(clamp_exponent(t));
    // 2^t - 2^-reference without cancellation when both are near 1.
    const vec<T> difference = fma(e.power, e.q * e.f, e.power - row.unit);
    counted = xsimd::abs(difference);
    // A score of 0 has weight 0, however its power was rounded.
    return xsimd::select(s > zero, max_or(zero, difference), zero);
  }
  static double output_factor(const finished_row& row) {
    const double sum = total(row);
    return sum == 0 ? 0 : 1 / __builtin_scalbn(sum, small_power(sum));
  }
  static double output_power(const finished_row& row) { return small_power(total(row)); }
  static double weight_of_top(const finished_row& row) {
    const double score = row.top > 0 ? row.top : 0;
    // e^score - 1 without cancellation for a small score, when the sum may be small, too.
    const double above = score < 1 ? floor(row) * __builtin_expm1(ln2 * score)
                                   : __builtin_exp2(score - row.reference) - floor(row);
    return at_most_one(above, total(row));
  }

  static row_constants backward_constants(const finished_row& row) {
    return {row.reference, row.sum + row.eps / __builtin_exp2(row.reference)};
  }

  /// Weights factor * max(2^u - 2^-reference, 0), with u a score less the reference.
  template <class T, gradient_terms>
  struct backward {
    vec<T> reference, constant, factor, unit;

    ATTNSCALE_INLINE explicit backward(const gradient_lanes<T>& row)
        : reference(load(row.reference)),
          constant(load(row.constant)),
          factor(load(row.factor)),
          unit(exp2(clamp_exponent(-reference))) {}

    ATTNSCALE_INLINE vec<T> operator()(vec<T> u, vec<T> score, vec<T>& gradient) const {
      const vec<T> zero = broadcast(T(0));
      const exp2_parts<T> e = split_exp2(clamp_exponent(u));
      const vec<T> power = fma(e.q, e.f, broadcast(T(1))) * e.power;
      const vec<T> above = fma(e.power, e.q * e.f, e.power - unit);
      const vec_mask<T> is_above = score > zero;
      const vec<T> x = xsimd::select(is_above, gradient + constant, -constant);
      gradient = power * factor * x;
      return xsimd::select(is_above, max_or(zero, above), zero) * factor;
    }
  };

 private:
  static double floor(const finished_row& row) { return __builtin_exp2(-row.reference); }
  static double total(const finished_row& row) { return row.sum + row.eps * floor(row); }
  /// Power of two that brings a sum whose inverse is out of range to [1/2, 1); else 0.
  static int small_power(double sum) {
    return sum > 0 && sum < 0x1p-100 ? -__builtin_ilogb(sum) - 1 : 0;
  }
};

static_assert(normalizer_weights<softmax_weights> && normalizer_weights<sigmoid_weights>);
static_assert(normalizer_weights<relu_weights<1>> && normalizer_weights<relu_weights<2>>);
static_assert(normalizer_weights<softpick_weights>);

/// Calls f(weights of the normalizer) for a normalizer of single scores, without from_all_scores in
/// normalizer_traits.hpp.
template <class F>
ATTNSCALE_INLINE auto with_weights(normalizer rule, F&& f) {
  switch (rule) {
    case normalizer::softmax:
      return f(softmax_weights{});
#if !defined(ATTNSCALE_SOFTMAX_ALONE)
    case normalizer::sigmoid:
      return f(sigmoid_weights{});
    case normalizer::relu:
      return f(relu_weights<1>{});
    case normalizer::squared_relu:
      return f(relu_weights<2>{});
    case normalizer::softpick:
      return f(softpick_weights{});
#else  // the module for WebAssembly has no others
    case normalizer::sigmoid:
    case normalizer::relu:
    case normalizer::squared_relu:
    case normalizer::softpick:
#endif
    case normalizer::entmax:
    case normalizer::top_k:
      break;  // see sparse/
  }
  __builtin_unreachable();
}

}  // namespace
