// SPDX-License-Identifier: BSD-3-Clause
#include "exact/query_rescaling.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "call/row_address.hpp"
#include "exact/statistics.hpp"

namespace attnscale::detail {
namespace {

/// Half exponents that are not moved: scales from 2^-17 to 2^17.
constexpr int unmoved_power = 8;

/// Exponents of products that are not moved: their squares are far from the type's limits.
int unmoved_product(const score_problem& p) {
  return p.compute == element_type::float64 ? 300 : 30;
}

/// Number of rows, and of heads, that are sampled for the size of products.
constexpr std::int64_t looked_at = 16;

/// Range of the binary exponents of numbers, without 0, infinity and NaN.
struct exponents {
  int least = std::numeric_limits<int>::max(), most = std::numeric_limits<int>::min();

  void add(double x) {
    if (x == 0 || !std::isfinite(x)) return;
    least = std::min(least, std::ilogb(x));
    most = std::max(most, std::ilogb(x));
  }
  bool any() const { return most >= least; }

  /// Half of the middle exponent, or 0 if that is near 0.
  int half() const {
    const int power = any() ? (least + most) / 4 : 0;
    return std::abs(power) > unmoved_power ? power : 0;
  }
};

std::int64_t scales_of(const score_problem& p) { return p.scale_row == 0 ? 1 : p.n_queries; }

exponents of_scales(const score_problem& p) {
  exponents found;
  for (const attention_head& head : p.heads)
    for (std::int64_t i = 0; head.scale && i < scales_of(p); ++i)
      found.add(head.scale[i * p.scale_row]);
  return found;
}

exponents of_rows(const void* data, const matrix_layout& layout, std::int64_t rows,
                  std::int64_t columns) {
  exponents found;
  for (std::int64_t i = 0; i < rows; i += std::max<std::int64_t>(1, rows / looked_at)) {
    const void* row = row_at(data, layout, i);
    for (std::int64_t c = 0; c < columns; ++c)
      found.add(read_value(row, layout.type, c * layout.column));
  }
  return found;
}

template <class T>
void multiply(T* row, std::int64_t count, int power) {
  for (std::int64_t c = 0; c < count; ++c) row[c] = std::ldexp(row[c], power);
}

/// Multiplies numbers of the compute type by a power of two.
void multiply(element_type type, void* row, std::int64_t count, int power) {
  if (!row) return;
  if (type == element_type::float64)
    multiply(static_cast<double*>(row), count, power);
  else
    multiply(static_cast<float*>(row), count, power);
}

}  // namespace

query_rescaling::query_rescaling(const attention_problem& p) : power_(of_scales(p).half()) {}

query_rescaling::query_rescaling(const top_keys_problem& p) : power_(of_scales(p).half()) {}

query_rescaling::query_rescaling(const curve_problem& p) {
  exponents found;
  for (const double scale : p.scales) found.add(scale);
  power_ = found.half();
}

query_rescaling::query_rescaling(const solve_problem& p) {
  exponents products;
  const auto heads = static_cast<std::int64_t>(p.heads.size());
  for (std::int64_t h = 0; h < heads; h += std::max<std::int64_t>(1, heads / looked_at)) {
    const attention_head& head = p.heads[static_cast<std::size_t>(h)];
    const exponents query = of_rows(head.query, p.query, p.n_queries, p.head_dim);
    const exponents key = of_rows(head.key, p.key, p.n_keys, p.head_dim);
    if (query.any() && key.any()) products.add(std::ldexp(1.0, query.most + key.most));
  }
  if (products.any() && std::abs(products.most) > unmoved_product(p)) power_ = -products.most;
}

void query_rescaling::move_scales(score_problem& p) {
  move_queries(p);
  for (attention_head& head : p.heads) head.scale = moved_scale(p, head.scale);
  if (p.scale_row != 0) p.scale_row = 1;
}

void query_rescaling::apply(curve_problem& p) {
  move_queries(p);
  for (double& scale : p.scales) scale = std::ldexp(scale, -power_);
}

void query_rescaling::move_queries(score_problem& p) {
  for (attention_head& head : p.heads) head.query = moved_query(p, head.query);
  p.query = {p.compute, static_cast<std::ptrdiff_t>(p.head_dim), 1};
}

const void* query_rescaling::moved_query(const score_problem& p, const void* query) {
  const auto row_bytes = static_cast<std::size_t>(p.head_dim * item_size(p.compute));
  const auto rows = static_cast<std::size_t>(p.n_queries);
  char* const out = static_cast<char*>(queries_.emplace_back(rows * row_bytes).data());
  for (std::size_t i = 0; i < rows; ++i) {
    const void* row = row_at(query, p.query, static_cast<std::int64_t>(i));
    for (std::int64_t c = 0; c < p.head_dim; ++c)
      write_value(out + i * row_bytes, p.compute, c,
                  std::ldexp(read_value(row, p.query.type, c * p.query.column), power_));
  }
  return out;
}

const double* query_rescaling::moved_scale(const score_problem& p, const double* scale) {
  std::vector<double>& own = scales_.emplace_back();
  for (std::int64_t i = 0; i < scales_of(p); ++i)
    own.push_back(std::ldexp(scale[i * p.scale_row], -power_));
  return own.data();
}

void query_rescaling::undo(const gradient_problem& p) const {
  std::vector<void*> done;  // heads may share an array
  for (const gradient_head& head : p.gradients) {
    if (!head.query || std::ranges::find(done, head.query) != done.end()) continue;
    done.push_back(head.query);
    for (std::int64_t i = 0; i < p.n_queries; ++i)
      multiply(p.compute, row_at(head.query, p.d_query, i), p.head_dim, power_);
  }
  const auto rows = static_cast<std::int64_t>(p.heads.size()) * p.n_queries;
  if (p.d_scale) multiply(p.d_scale, rows, -power_);
}

void query_rescaling::undo(const curve_problem& p) const {
  const auto points = static_cast<std::int64_t>(p.heads.size() * p.scales.size()) * p.n_queries;
  multiply(p.compute, p.mean, points, -power_);
  multiply(p.compute, p.variance, points, -2 * power_);
}

void query_rescaling::undo(const solve_problem& p) const {
  multiply(p.scale, static_cast<std::int64_t>(p.heads.size()) * p.n_queries, power_);
}

}  // namespace attnscale::detail
