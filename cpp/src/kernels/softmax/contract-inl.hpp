// SPDX-License-Identifier: BSD-3-Clause
//
// Requirements on a normalizer for the loops over scores and the backward pass: the concept
// normalizer_weights, which every struct of normalizers-inl.hpp satisfies, and the rows that its
// functions take. Scores are in base 2, s = score * log2(e).
#pragma once

#include "kernels/gradient/block.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/tile/block.hpp"

namespace {

using attnscale::detail::attend_block;
using attnscale::detail::gradient_terms;

/// Lanes of one vector of rows.
template <class T>
struct pointwise_lanes {
  vec<T> scale;      ///< scale * log2(e); not read for finished scores
  vec<T> bias;       ///< added to the scores, in base 2, if the row's number is a bias
  vec<T> reference;  ///< see follows_top
  vec<T> unit;       ///< the normalizer's unit(reference)
};

/// Pointer to the number of row r; null: no number.
inline const double* number_of_row(const attend_block& b, int r) {
  return b.number ? b.number + r * b.number_row : nullptr;
}

/// A row at its end. The sum of the weights of a NaN row is NaN.
struct finished_row {
  double reference, sum, top;
  double eps;
  const double* number;  ///< null: no number

  finished_row(const attend_block& b, int r)
      : reference(b.sums->reference[r]),
        sum(b.sums->weight[r]),
        top(b.sums->top[r]),
        eps(b.numbers.eps),
        number(number_of_row(b, r)) {}

  double nan_or_zero() const { return sum - sum; }
};

/// Per-row numbers of a block, one per lane: see gradient_rows.
template <class T>
struct gradient_lanes {
  T* scale;  ///< times log2(e)
  T *reference, *remainder, *constant, *linear, *square, *weight, *factor;

  gradient_lanes at(int lane) const {
    return {scale + lane,  reference + lane, remainder + lane, constant + lane,
            linear + lane, square + lane,    weight + lane,    factor + lane};
  }
};

/// gradient_rows::reference, and 1 / gradient_rows::factor.
struct row_constants {
  double reference, divisor;
};

template <class X, class Y>
concept same_type = __is_same(X, Y);

/// Weights relative to 2^reference, where the reference follows the row's largest score: when it is
/// too far behind, and its new value. moment_unit: factor of such a move in sum w ln w.
template <class W, class T>
concept relative_to_top = requires(T top, vec<T> tops) {
  { W::is_behind(tops, tops) } -> same_type<vec_mask<T>>;
  { W::reference_at(tops) } -> same_type<vec<T>>;
  { W::reference_at(top) } -> same_type<T>;
  { W::moment_unit } -> same_type<const double&>;
};

/// Weights that are functions of single scores and of the row's number. unit(reference): see
/// pointwise_lanes. weight: of a score, before the row's factor; `counted` is its contribution to
/// the sum. weight_of_top: weight of the largest score, at the end. backward_constants: for a row
/// after its forward pass. has_bounded_form: weight<Masked, true> is faster, for scores within
/// most_exponent. counts_scores: support is the number of positive scores, not of positive weights.
template <class W, class T>
concept pointwise = requires(const finished_row& row, const pointwise_lanes<T>& lanes, vec<T> x) {
  { W::unit(x) } -> same_type<vec<T>>;
  { W::template weight<true, false>(x, lanes, x) } -> same_type<vec<T>>;
  { W::template weight<false, W::has_bounded_form>(x, lanes, x) } -> same_type<vec<T>>;
  { W::weight_of_top(row) } -> same_type<double>;
  { W::backward_constants(row) } -> same_type<row_constants>;
  { W::counts_scores } -> same_type<const bool&>;
};

/// Weights in arithmetic of type T. is_exponential: as normalizer_traits says; such weights share
/// the loops over scores and the constants of the backward pass. adds_number: the number of a row
/// is added to its scores. first_reference: the initial reference, before any key. output_factor,
/// output_power: the summed values of a row are multiplied by output_factor * 2^output_power.
/// backward: from a score's distance u to the row's reference, the score, and the gradient by its
/// weight, to the weight; replaces the gradient by that of the score.
template <class W, class T>
concept weights_in = requires(const finished_row& row, const gradient_lanes<T>& lanes, vec<T> x) {
  { W::adds_number } -> same_type<const bool&>;
  { W::template first_reference<T> } -> same_type<const T&>;
  { W::output_factor(row) } -> same_type<double>;
  { W::output_power(row) } -> same_type<double>;
  { typename W::template backward<T, gradient_terms::all>(lanes)(x, x, x) } -> same_type<vec<T>>;
  requires W::is_exponential || pointwise<W, T>;
  requires !W::follows_top || relative_to_top<W, T>;
};

template <class W>
concept normalizer_weights = weights_in<W, float> && weights_in<W, double>;

/// Defaults for functions of single scores.
struct pointwise_traits {
  static constexpr bool is_exponential = false, has_bounded_form = false, counts_scores = false;
  static constexpr bool adds_number = false;
};

}  // namespace
