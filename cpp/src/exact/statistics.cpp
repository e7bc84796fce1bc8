// SPDX-License-Identifier: BSD-3-Clause
//
// From sums in base 2 to statistics in nats: with l = sum of 2^(t - r), a = sum of weight (t - r),
//   lse = ln2 r + ln l,   mean score = ln2 (r + a / l),   entropy = ln l - ln2 a / l.
#include "exact/statistics.hpp"

#include <cmath>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include "attnscale/normalizer_traits.hpp"
#include "kernels/numbers.hpp"
#include "kernels/simd/float16.hpp"

namespace attnscale::detail {
namespace {

/// One row's sums, and the logarithm that three statistics use.
struct sums_row {
  double reference, weight, first, second, squares, top, least;

  sums_row(const row_sums& s, int r)
      : reference(s.reference[r]),
        weight(s.weight[r]),
        first(s.first[r]),
        second(s.second[r]),
        squares(s.squares[r]),
        top(s.top[r]),
        least(s.least[r]) {}

  double entropy(double log_weight) const {
    const double h = log_weight - ln2 * first / weight;
    return h < 0 ? 0 : h;  // rounding of a one-hot row; NaN is kept
  }
  double mean() const { return ln2 * (reference + first / weight); }
  double variance() const {
    const double m = first / weight, v = ln2 * ln2 * (second / weight - m * m);
    return v < 0 ? 0 : v;
  }
};

/// -ln of a concentration; 0 without weights, and if rounding makes it just above 1. NaN is kept.
double renyi2_of(double concentration) {
  const double h = concentration == 0 ? 0 : 0 - std::log(concentration);
  return h < 0 ? 0 : h;
}

/// Writer of one row's statistics, rounded once; unwanted ones are skipped.
template <class T>
struct row_writer {
  const row_outputs& out;
  std::int64_t at;

  bool wants(statistic which) const { return out[which] != nullptr; }
  void put(statistic which, double x) const { detail::put<T>(out[which], at, x); }
  /// Writes a statistic that takes a division or a function: x() is called only if it is wanted.
  template <class X>
  requires std::is_invocable_v<X>
  void put(statistic which, X&& x) const {
    if (wants(which)) put(which, double{x()});
  }
  void count(statistic which, std::int64_t n) const {
    if (wants(which)) static_cast<std::int64_t*>(out[which])[at] = n;
  }
  void put_all(std::initializer_list<statistic> which, double x) const {
    for (const statistic each : which) put(each, x);
  }
};

/// Writes a row without visible keys (x = 0), or with a NaN or infinity (x = NaN): its weight is
/// NaN, and then every statistic is.
template <class T>
void write_degenerate(const row_writer<T>& row, double x) {
  using enum statistic;
  row.put_all({lse, max_score}, x == 0 ? -infinity : x);
  row.put(min_score, x == 0 ? infinity : x);
  row.put_all({sink_weight, entropy, mean_score, score_variance, concentration, max_weight, renyi2},
              x);
}

template <class T>
void write_exponential_row(const row_writer<T>& row, const row_sums& sums, int r, double sink) {
  using enum statistic;
  const sums_row s(sums, r);
  row.count(argmax, sums.argmax[r]);
  if (!(s.weight > 0)) return write_degenerate(row, s.weight);
  const double log_weight = row.wants(lse) || row.wants(entropy) ? std::log(s.weight) : 0;
  const auto of_squares = [&] { return s.squares / (s.weight * s.weight); };
  row.put(lse, ln2 * s.reference + log_weight);
  row.put(entropy, [&] { return s.entropy(log_weight); });
  row.put(max_score, ln2 * s.top);
  row.put(min_score, ln2 * s.least);
  row.put(mean_score, [&] { return s.mean(); });
  row.put(score_variance, [&] { return s.variance(); });
  row.put(concentration, of_squares);
  row.put(renyi2, [&] { return renyi2_of(of_squares()); });
  row.put(sink_weight, sink);
  // The rounding error of a large `top` enters as a factor, but no weight is above 1.
  row.put(max_weight, [&] { return std::fmin(1, std::exp2(s.top - s.reference) / s.weight); });
}

/// Entropy of weights over their sum, from sum w ln w: ln S - (sum w ln w) / S.
double entropy_of_weights(const row_sums& sums, int r) {
  if (!(sums.weight[r] > 0)) return 0;
  const double h = std::log(sums.weight[r]) - sums.first[r] / sums.weight[r];
  return h < 0 ? 0 : h;  // rounding of a one-hot row
}

double concentration_of_weights(const row_sums& sums, int r) {
  return sums.weight[r] > 0 ? sums.squares[r] / sums.weight[r] / sums.weight[r] : 0;
}

/// Row of weights that are functions of single scores.
template <class T>
void write_pointwise_row(const row_writer<T>& row, const row_sums& sums, int r) {
  using enum statistic;
  const double nothing = sums.weight[r] - sums.weight[r];  // NaN for a NaN row
  const bool empty = sums.top[r] == static_cast<double>(std::numeric_limits<T>::lowest());
  row.put(max_score, nothing + (empty ? -infinity : ln2 * sums.top[r]));
  row.put(min_score, nothing + ln2 * sums.least[r]);
  row.put(max_weight, nothing + sums.top_weight[r]);
  row.put(sink_weight, nothing);
  row.put(entropy, [&] { return nothing + entropy_of_weights(sums, r); });
  row.put(concentration, [&] { return nothing + concentration_of_weights(sums, r); });
  row.put(renyi2, [&] { return nothing + renyi2_of(concentration_of_weights(sums, r)); });
  row.count(support, static_cast<std::int64_t>(sums.support[r]));
  row.count(argmax, sums.argmax[r]);
}

template <class T>
void write_report_row(const row_writer<T>& row, const row_report& rows, int r) {
  using enum statistic;
  row.put(lse, rows.lse[r]);
  row.put(entropy, rows.entropy[r]);
  row.put(max_score, rows.top[r]);
  row.put(min_score, rows.least[r]);
  row.put(mean_score, rows.mean[r]);
  row.put(score_variance, rows.variance[r]);
  row.put(concentration, rows.concentration[r]);
  row.put(renyi2, [&] { return renyi2_of(rows.concentration[r]); });
  row.put(max_weight, rows.max_weight[r]);
  row.put(sink_weight, rows.max_weight[r] - rows.max_weight[r]);
  row.count(argmax, rows.argmax[r]);
  row.count(support, rows.support[r]);
}

/// Calls write(writer of a row, its index in the block) for every row.
template <class F>
void for_rows(const attention_problem& problem, const query_block& rows, F&& write) {
  if (!problem.statistics.any()) return;
  const std::int64_t first = rows.head * problem.n_queries + rows.first;
  for (int r = 0; r < rows.count; ++r) {
    if (problem.statistics.type(problem.compute) == element_type::float64)
      write(row_writer<double>{problem.statistics, first + r}, r);
    else
      write(row_writer<float>{problem.statistics, first + r}, r);
  }
}

}  // namespace

void merge_sums(const row_sums* parts, std::int64_t count, int row, row_sums& total,
                double* share) {
  double reference = -infinity, top = -infinity, least = infinity;
  total.argmax[row] = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    const sums_row s(parts[i], row);
    least = std::fmin(least, s.least);
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
  total.least[row] = least;
}

double add_sink(row_sums& sums, int row, double score) {
  // Clamped, so that log2(e) times a finite number stays finite.
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

int sums_for(const attention_problem& problem) {
  using enum statistic;
  const row_outputs& out = problem.statistics;
  bool moments = out[score_variance] || out[concentration] || out[renyi2];
  // Exponentials have their entropy from sums that are always present.
  if (!traits_of(problem.rule).is_exponential) moments = moments || out[entropy] || out[support];
  return (moments ? wanted_moments : 0) | (out[argmax] ? wanted_argmax : 0) |
         (out[max_weight] ? wanted_top_weight : 0) | (out[min_score] ? wanted_least : 0);
}

void write_statistics(const attention_problem& problem, const query_block& rows,
                      const row_sums& sums, const double* sink) {
  const bool exponential = traits_of(problem.rule).is_exponential;
  for_rows(problem, rows, [&](const auto& row, int r) {
    exponential ? write_exponential_row(row, sums, r, sink[r]) : write_pointwise_row(row, sums, r);
  });
}

void write_statistics(const attention_problem& problem, const query_block& rows,
                      const row_report& report) {
  for_rows(problem, rows, [&](const auto& row, int r) { write_report_row(row, report, r); });
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

double read_value(const void* row, element_type type, std::ptrdiff_t i) {
  switch (type) {
    case element_type::float32:
      return static_cast<const float*>(row)[i];
    case element_type::float64:
      return static_cast<const double*>(row)[i];
    case element_type::float16:
      return float_from_float16(static_cast<const std::uint16_t*>(row)[i]);
    case element_type::bfloat16:
      return float_from_bfloat16(static_cast<const std::uint16_t*>(row)[i]);
  }
  return 0;
}

}  // namespace attnscale::detail
