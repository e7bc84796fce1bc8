// SPDX-License-Identifier: BSD-3-Clause
//
// Sums in base 2 to statistics in nats: with l = sum of 2^(t - r), a = sum of weight (t - r),
//   lse = ln2 r + ln l,   mean score = ln2 (r + a / l),   entropy = ln l - ln2 a / l.
#include "statistics.hpp"

#include <cmath>
#include <limits>

#include "kernels/float16.hpp"

namespace attnscale::detail {
namespace {

constexpr double ln2 = 0.69314718055994530942;
constexpr double log2e = 1.4426950408889634074;
constexpr double infinity = std::numeric_limits<double>::infinity();

/// One row's sums, and the logarithm that three statistics share.
struct sums_row {
  double reference, weight, first, second, squares, top;

  sums_row(const row_sums& s, int r)
      : reference(s.reference[r]),
        weight(s.weight[r]),
        first(s.first[r]),
        second(s.second[r]),
        squares(s.squares[r]),
        top(s.top[r]) {}

  double entropy(double log_weight) const {
    const double h = log_weight - ln2 * first / weight;
    return h < 0 ? 0 : h;  // rounding of a one-hot row; NaN stays
  }
  double mean() const { return ln2 * (reference + first / weight); }
  double variance() const {
    const double m = first / weight, v = ln2 * ln2 * (second / weight - m * m);
    return v < 0 ? 0 : v;
  }
};

template <class T>
void put(void* out, std::int64_t at, double x) {
  if (out) static_cast<T*>(out)[at] = static_cast<T>(x);
}

/// What a row without a visible key reports (x = 0), and a row with a NaN or infinity (x = NaN):
/// its weight is NaN, and then every statistic is.
template <class T>
void write_degenerate(const row_outputs& out, std::int64_t at, double x) {
  const double nothing = x == 0 ? -infinity : x;
  put<T>(out.lse, at, nothing);
  put<T>(out.max_score, at, nothing);
  put<T>(out.sink_weight, at, x);
  for (void* statistic :
       {out.entropy, out.mean_score, out.score_variance, out.concentration, out.max_weight})
    put<T>(statistic, at, x);
}

template <class T>
void write_typed(const row_outputs& out, std::int64_t at, int count, const row_sums& sums,
                 const double* sink) {
  for (int r = 0; r < count; ++r, ++at) {
    const sums_row s(sums, r);
    if (!(s.weight > 0)) {
      write_degenerate<T>(out, at, s.weight);
      continue;
    }
    const double log_weight = out.lse || out.entropy ? std::log(s.weight) : 0;
    put<T>(out.lse, at, ln2 * s.reference + log_weight);
    put<T>(out.entropy, at, s.entropy(log_weight));
    put<T>(out.max_score, at, ln2 * s.top);
    put<T>(out.mean_score, at, s.mean());
    put<T>(out.score_variance, at, s.variance());
    put<T>(out.concentration, at, s.squares / (s.weight * s.weight));
    put<T>(out.sink_weight, at, sink[r]);
    // The rounding of a large `top` counts here as a factor, but no weight is above 1.
    if (out.max_weight)
      put<T>(out.max_weight, at, std::fmin(1, std::exp2(s.top - s.reference) / s.weight));
  }
}

}  // namespace

void merge_sums(const row_sums* parts, std::int64_t count, int row, row_sums& total,
                double* share) {
  double reference = -infinity, top = -infinity;
  total.argmax[row] = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    const sums_row s(parts[i], row);
    if (s.weight != 0) reference = std::fmax(reference, s.reference);
    if (s.weight != 0 && s.top > top) {
      top = s.top;
      total.argmax[row] = parts[i].argmax[row];
    }
  }
  double weight = 0, first = 0, second = 0, squares = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const sums_row s(parts[i], row);
    const double shift = s.weight == 0 ? 0 : s.reference - reference;
    const double factor = s.weight == 0 ? 0 : std::exp2(shift);
    share[i] = factor * s.weight;
    weight += share[i];
    if (factor == 0) continue;
    first += factor * (s.first + shift * s.weight);
    second += factor * (s.second + 2 * shift * s.first + shift * shift * s.weight);
    squares += factor * factor * s.squares;
  }
  for (std::int64_t i = 0; i < count; ++i) share[i] = weight == 0 ? 0 : share[i] / weight;
  total.reference[row] = reference;
  total.weight[row] = weight;
  total.first[row] = first;
  total.second[row] = second;
  total.squares[row] = squares;
  total.top[row] = top;
}

double add_sink(row_sums& sums, int row, double score) {
  // log2(e) times a finite number stays finite.
  const double t = std::fmax(-1e300, std::fmin(score, 1e300)) * log2e;
  double &weight = sums.weight[row], &first = sums.first[row], &second = sums.second[row];
  if (weight == 0) {
    sums.reference[row] = t;
    weight = sums.squares[row] = 1;
    first = second = 0;
    sums.top[row] = -infinity;
    return 1;
  }
  const double reference = std::fmax(sums.reference[row], t);
  const double shift = sums.reference[row] - reference, f = std::exp2(shift);
  const double u = t - reference, g = std::exp2(u);
  second = f == 0 ? 0 : f * (second + 2 * shift * first + shift * shift * weight);
  first = f == 0 ? 0 : f * (first + shift * weight);
  weight = f * weight + g;
  sums.squares[row] = f * f * sums.squares[row] + g * g;
  if (g > 0) {
    first += g * u;
    second += g * u * u;
  }
  sums.reference[row] = reference;
  return g / weight;
}

double share_of_keys(const row_sums& sums, int row, const double* sink) {
  if (!sink || sums.weight[row] == 0) return 1;
  const double t = *sink * log2e - sums.reference[row];
  return sums.weight[row] / (sums.weight[row] + std::exp2(t));
}

void write_statistics(const attention_problem& problem, const query_block& rows,
                      const row_sums& sums, const double* sink) {
  const row_outputs& out = problem.statistics;
  const std::int64_t at = rows.head * problem.n_queries + rows.first;
  const bool any = out.lse || out.entropy || out.max_score || out.mean_score ||
                   out.score_variance || out.concentration || out.max_weight || out.sink_weight;
  if (any && problem.compute == element_type::float64)
    write_typed<double>(out, at, rows.count, sums, sink);
  else if (any)
    write_typed<float>(out, at, rows.count, sums, sink);
  for (int r = 0; out.argmax && r < rows.count; ++r) out.argmax[at + r] = sums.argmax[r];
}

void write_value(void* row, element_type type, std::ptrdiff_t i, double x) {
  switch (type) {
    case element_type::float32:
      static_cast<float*>(row)[i] = static_cast<float>(x);
      break;
    case element_type::float64:
      static_cast<double*>(row)[i] = x;
      break;
    case element_type::float16:
      static_cast<std::uint16_t*>(row)[i] = float16_from_float(static_cast<float>(x));
      break;
    case element_type::bfloat16:
      static_cast<std::uint16_t*>(row)[i] = bfloat16_from_float(static_cast<float>(x));
  }
}

}  // namespace attnscale::detail
