// SPDX-License-Identifier: BSD-3-Clause
//
// Sums in base 2 to statistics in nats: with l = sum of 2^(t - r), a = sum of weight (t - r),
//   lse = ln2 r + ln l,   mean score = ln2 (r + a / l),   entropy = ln l - ln2 a / l.
#include "row_statistics.hpp"

#include <cmath>
#include <limits>

#include "kernels/float16.hpp"

namespace attnscale::detail {
namespace {

constexpr double ln2 = 0.69314718055994530942;
constexpr double infinity = std::numeric_limits<double>::infinity();

/// One row's sums.
struct sums_row {
  double reference, weight, first, second, squares, top;
  std::int64_t argmax;

  sums_row(const row_sums& s, int r)
      : reference(s.reference[r]),
        weight(s.weight[r]),
        first(s.first[r]),
        second(s.second[r]),
        squares(s.squares[r]),
        top(s.top[r]),
        argmax(s.argmax[r]) {}

  double entropy() const {
    const double h = std::log(weight) - ln2 * first / weight;
    return h < 0 ? 0 : h;  // rounding of a one-hot row; NaN stays
  }
  double mean() const { return ln2 * (reference + first / weight); }
  double variance() const {
    const double m = first / weight, v = ln2 * ln2 * (second / weight - m * m);
    return v < 0 ? 0 : v;
  }
};

/// What a row reports: its value where it saw a key, `empty` where it did not. A row with a
/// NaN or infinity has weight NaN, and then every statistic is NaN.
template <class T, class F>
void write_rows(void* out, std::int64_t at, int count, const row_sums& sums, double empty, F f) {
  if (!out) return;
  for (int r = 0; r < count; ++r) {
    const double weight = sums.weight[r];
    const double x = weight == 0 ? empty : weight != weight ? weight : f(sums_row(sums, r));
    static_cast<T*>(out)[at + r] = static_cast<T>(x);
  }
}

template <class T>
void write_typed(const row_outputs& out, std::int64_t at, int count, const row_sums& sums) {
  const auto write = [&](void* to, double empty, auto f) {
    write_rows<T>(to, at, count, sums, empty, f);
  };
  write(out.lse, -infinity, [](const sums_row& s) { return ln2 * s.reference + std::log(s.weight); });
  write(out.entropy, 0, [](const sums_row& s) { return s.entropy(); });
  write(out.max_score, -infinity, [](const sums_row& s) { return ln2 * s.top; });
  write(out.mean_score, 0, [](const sums_row& s) { return s.mean(); });
  write(out.score_variance, 0, [](const sums_row& s) { return s.variance(); });
  write(out.concentration, 0, [](const sums_row& s) { return s.squares / (s.weight * s.weight); });
  write(out.max_weight, 0,
        [](const sums_row& s) { return std::exp2(s.top - s.reference) / s.weight; });
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
      total.argmax[row] = s.argmax;
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

void write_statistics(const attention_problem& problem, const query_block& rows,
                      const row_sums& sums) {
  const row_outputs& out = problem.statistics;
  const std::int64_t at = rows.head * problem.n_queries + rows.first;
  if (problem.compute == element_type::float64)
    write_typed<double>(out, at, rows.count, sums);
  else
    write_typed<float>(out, at, rows.count, sums);
  for (int r = 0; out.argmax && r < rows.count; ++r) out.argmax[at + r] = sums.argmax[r];
}

void write_value(void* row, element_type type, std::ptrdiff_t i, double x) {
  switch (type) {
    case element_type::float32: static_cast<float*>(row)[i] = static_cast<float>(x); break;
    case element_type::float64: static_cast<double*>(row)[i] = x; break;
    case element_type::float16:
      static_cast<std::uint16_t*>(row)[i] = float16_from_float(static_cast<float>(x));
      break;
    case element_type::bfloat16:
      static_cast<std::uint16_t*>(row)[i] = bfloat16_from_float(static_cast<float>(x));
  }
}

}  // namespace attnscale::detail
