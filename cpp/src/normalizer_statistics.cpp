// SPDX-License-Identifier: BSD-3-Clause
//
// Statistics of rows whose weights are not a plain softmax.
#include <cmath>
#include <limits>

#include "statistics.hpp"

namespace attnscale::detail {
namespace {

constexpr double ln2 = 0.69314718055994530942;
constexpr double infinity = std::numeric_limits<double>::infinity();

template <class T>
void put(void* out, std::int64_t at, double x) {
  if (out) static_cast<T*>(out)[at] = static_cast<T>(x);
}

/// The weight of a score in base 2, from the sums of its row (see kernels/weights-inl.hpp).
double weight_of(const attention_problem& p, const row_sums& sums, int r, double t,
                 const double* constant) {
  const double score = ln2 * t;
  if (p.rule == normalizer::sigmoid) return 1 / (1 + std::exp(-score - (constant ? *constant : 0)));
  if (p.rule == normalizer::softpick) {
    const double floor = std::exp2(-sums.reference[r]);
    const double total = sums.weight[r] + p.order * floor;
    const double above = score > 0 ? std::exp2(t - sums.reference[r]) - floor : 0;
    return above > 0 && total > 0 ? above / total : 0;
  }
  const double above = score > 0 ? score : 0;
  const double weight = p.rule == normalizer::relu ? above : above * above;
  if (constant) return weight * *constant;
  return weight > 0 ? weight / sums.weight[r] : 0;
}

/// Entropy of weights over their sum, from sum w ln w: ln S - (sum w ln w) / S.
double entropy_of(const row_sums& sums, int r) {
  if (!(sums.weight[r] > 0)) return 0;
  const double h = std::log(sums.weight[r]) - sums.first[r] / sums.weight[r];
  return h < 0 ? 0 : h;  // rounding of a one-hot row
}

double concentration_of(const row_sums& sums, int r) {
  return sums.weight[r] > 0 ? sums.squares[r] / sums.weight[r] / sums.weight[r] : 0;
}

template <class T>
void write_pointwise_rows(const attention_problem& p, const query_block& rows, std::int64_t at,
                          const row_sums& sums) {
  const row_outputs& out = p.statistics;
  const double* constant = p.heads[rows.head].constant;
  for (int r = 0; r < rows.count; ++r, ++at) {
    const double* own = constant ? constant + (rows.first + r) * p.constant_row : nullptr;
    const double nothing = sums.weight[r] - sums.weight[r];  // NaN where the row is
    const bool empty = sums.top[r] == static_cast<double>(std::numeric_limits<T>::lowest());
    put<T>(out.max_score, at, nothing + (empty ? -infinity : ln2 * sums.top[r]));
    put<T>(out.max_weight, at, nothing + (empty ? 0 : weight_of(p, sums, r, sums.top[r], own)));
    put<T>(out.sink_weight, at, nothing);
    put<T>(out.entropy, at, nothing + entropy_of(sums, r));
    put<T>(out.concentration, at, nothing + concentration_of(sums, r));
    if (out.support) out.support[at] = static_cast<std::int64_t>(sums.support[r]);
    if (out.argmax) out.argmax[at] = sums.argmax[r];
  }
}

template <class T>
void write_report_rows(const row_outputs& out, std::int64_t at, int count, const row_report& rows) {
  for (int r = 0; r < count; ++r, ++at) {
    put<T>(out.lse, at, rows.lse[r]);
    put<T>(out.entropy, at, rows.entropy[r]);
    put<T>(out.max_score, at, rows.top[r]);
    put<T>(out.mean_score, at, rows.mean[r]);
    put<T>(out.score_variance, at, rows.variance[r]);
    put<T>(out.concentration, at, rows.concentration[r]);
    put<T>(out.max_weight, at, rows.max_weight[r]);
    put<T>(out.sink_weight, at, rows.max_weight[r] - rows.max_weight[r]);
    if (out.argmax) out.argmax[at] = rows.argmax[r];
    if (out.support) out.support[at] = rows.support[r];
  }
}

std::int64_t first_row(const attention_problem& problem, const query_block& rows) {
  return rows.head * problem.n_queries + rows.first;
}

}  // namespace

void write_pointwise(const attention_problem& problem, const query_block& rows,
                     const row_sums& sums) {
  const std::int64_t at = first_row(problem, rows);
  if (problem.compute == element_type::float64)
    write_pointwise_rows<double>(problem, rows, at, sums);
  else
    write_pointwise_rows<float>(problem, rows, at, sums);
}

void write_report(const attention_problem& problem, const query_block& rows,
                  const row_report& report) {
  const std::int64_t at = first_row(problem, rows);
  if (problem.compute == element_type::float64)
    write_report_rows<double>(problem.statistics, at, rows.count, report);
  else
    write_report_rows<float>(problem.statistics, at, rows.count, report);
}

}  // namespace attnscale::detail
