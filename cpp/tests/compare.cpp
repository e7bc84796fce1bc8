// SPDX-License-Identifier: BSD-3-Clause
#include "compare.hpp"

namespace testing {

/// A row without keys has lse -inf, which has to match exactly.
static oracle::column finite(const oracle::column& x) { return xt::where(xt::isinf(x), 0.0, x); }

template <class T>
bounds<T>::bounds(const oracle::expected& e)
    : score(2 * eps * (1 + e.magnitude)), moved(score * (1 + xt::sqrt(e.score_variance))) {}

template <class T>
oracle::matrix bounds<T>::output(const oracle::expected& e, double factor) const {
  return (factor * eps + 2 * oracle::as_column(score)) * e.absolute_output + tiny;
}

template <class T>
oracle::column bounds<T>::entropy(const oracle::expected& e) const {
  return sums + 2 * moved + eps * e.entropy;
}

template <class T>
oracle::column bounds<T>::lse(const oracle::expected& e) const {
  return sums + score + eps * xt::abs(finite(e.lse));
}

template <class T>
oracle::column bounds<T>::max_score(const oracle::expected& e) const {
  return score + 2 * eps * xt::abs(finite(e.max_score));
}

template <class T>
oracle::column bounds<T>::min_score(const oracle::expected& e) const {
  return score + 2 * eps * xt::abs(finite(e.min_score));
}

/// Bound of the concentration, over the concentration: renyi2 is its logarithm.
template <class T>
oracle::column bounds<T>::renyi2(const oracle::expected& e) const {
  const oracle::column one = xt::ones<double>(e.concentration.shape());
  return 2 * weight(e, one) + eps * e.renyi2;
}

template <class T>
oracle::column bounds<T>::mean_score(const oracle::expected& e) const {
  return sums + moved + eps * xt::abs(e.mean_score);
}

template <class T>
oracle::column bounds<T>::score_variance(const oracle::expected& e) const {
  return sums + 4 * score * (1 + 4 * e.spread) + 16 * eps * e.spread;
}

// The rounding of the oracle's own plain sum over the keys counts, too.
template <class T>
oracle::column bounds<T>::weight(const oracle::expected& e, const oracle::column& w) const {
  const double sum = std::sqrt(static_cast<double>(e.weights.shape(1)));
  return tiny + (8 * eps + sum * bounds<double>::eps + 4 * score) * w;
}

/// argmax may differ from the oracle's if the scores of two keys tie within rounding.
template <class T>
static void check_argmax(const xt::xarray<std::int64_t>& seen, const oracle::expected& e,
                         const bounds<T>& bound) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen.flat(i) == e.argmax(i)) continue;
    const bool in_range =
        seen.flat(i) >= 0 && seen.flat(i) < static_cast<std::int64_t>(e.weights.shape(1));
    wrong += !in_range || e.argmax(i) < 0 ||
             e.weights(i, static_cast<std::size_t>(seen.flat(i))) <
                 e.max_weight(i) * std::exp(-2 * bound.score(i));
  }
  CHECK(wrong == 0);
}

template <class T>
void check_statistics(const attnscale::attention_statistics_result<T>& seen,
                      const oracle::expected& e) {
  const bounds<T> b(e);
  CHECK(worst_ratio(*seen.lse, e.lse, b.lse(e)) <= 1);
  CHECK(worst_ratio(*seen.entropy, e.entropy, b.entropy(e)) <= 1);
  CHECK(worst_ratio(*seen.max_score, e.max_score, b.max_score(e)) <= 1);
  CHECK(worst_ratio(*seen.mean_score, e.mean_score, b.mean_score(e)) <= 1);
  CHECK(worst_ratio(*seen.score_variance, e.score_variance, b.score_variance(e)) <= 1);
  CHECK(worst_ratio(*seen.concentration, e.concentration, b.weight(e, e.concentration)) <= 1);
  CHECK(worst_ratio(*seen.max_weight, e.max_weight, b.weight(e, e.max_weight)) <= 1);
  CHECK(worst_ratio(*seen.renyi2, e.renyi2, b.renyi2(e)) <= 1);
  CHECK(worst_ratio(*seen.min_score, e.min_score, b.min_score(e)) <= 1);
  CHECK(xt::xarray<std::int64_t>(e.n_visible) == *seen.n_visible);
  check_argmax(*seen.argmax, e, b);
}

template <class T>
void check_call(const inputs<T>& in, const attnscale::attention_options& options,
                const oracle::setting& setting) {
  CAPTURE(sizeof(T));
  CAPTURE(in.query.shape(0));
  CAPTURE(in.key.shape(0));
  CAPTURE(in.query.shape(1));
  CAPTURE(in.value.shape(1));
  const oracle::expected e = oracle::attention(in.query, in.key, in.value, setting);
  const auto seen = attnscale::attention_statistics(in.query, in.key, in.value, options,
                                                    attnscale::all_statistics);
  CHECK(worst_ratio(*seen.output, e.output, bounds<T>(e).output(e)) <= 1);
  check_statistics(seen, e);
  CHECK(identical(*seen.output, attnscale::attention(in.query, in.key, in.value, options)));
  CHECK(identical(*seen.entropy, attnscale::attention_entropy(in.query, in.key, options)));
}

template struct bounds<float>;
template struct bounds<double>;
template void check_statistics(const attnscale::attention_statistics_result<float>&,
                               const oracle::expected&);
template void check_call(const inputs<float>&, const attnscale::attention_options&,
                         const oracle::setting&);
template void check_statistics(const attnscale::attention_statistics_result<double>&,
                               const oracle::expected&);
template void check_call(const inputs<double>&, const attnscale::attention_options&,
                         const oracle::setting&);

}  // namespace testing
