// SPDX-License-Identifier: BSD-3-Clause
//
// fill and fill_sphere: from ranges of elements to whole groups for the kernels.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attnscale/detail/refuse.hpp"
#include "experiments/montecarlo_checks.hpp"
#include "experiments/variate_block.hpp"
#include "machine/dispatch.hpp"
#include "machine/thread_pool.hpp"

namespace attnscale {

namespace detail {
namespace {

/// P(standard normal < x).
double normal_below(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752440); }

template <class T>
double last_below(double end) {
  return static_cast<double>(
      std::nextafter(static_cast<T>(end), -std::numeric_limits<T>::infinity()));
}

void set_truncation(variate_block& block) {
  block.below = normal_below(block.low);
  block.above = normal_below(-block.high);
  // Computed on the side where both terms are small.
  block.inside = block.low > 0 ? normal_below(-block.low) - block.above
                               : normal_below(block.high) - block.below;
}

}  // namespace

variate_block variate_block_of(const variate& what, element_type type) {
  variate_block block{what.kind, what.a, what.b, what.low, what.high, 0, 0, 0};
  if (what.kind == distribution::uniform) {
    block.scale = what.b - what.a;
    const bool wide = type == element_type::float64;
    block.high = wide ? last_below<double>(what.b) : last_below<float>(what.b);
  }
  if (what.kind == distribution::truncated_normal) set_truncation(block);
  return block;
}

}  // namespace detail

namespace {

using namespace detail;

/// Elements per task: about 60 microseconds of work.
constexpr std::int64_t task_elements = std::int64_t{1} << 16;

template <class T>
struct element_name;
template <>
struct element_name<float> {
  static constexpr element_type type = element_type::float32;
};
template <>
struct element_name<double> {
  static constexpr element_type type = element_type::float64;
};

template <class T>
fill_kernel kernel_of() {
  return active_kernels(element_name<T>::type).fill;
}

/// Elements [first, first + count); partial groups at the ends are generated in full in a buffer.
template <class T>
void fill_range(fill_block block, std::uint64_t first, std::int64_t count, T* out) {
  constexpr std::int64_t size = group_elements<T>;
  const auto kernel = kernel_of<T>();
  while (count > 0) {
    block.first_group = first / size;
    const auto skip = static_cast<std::int64_t>(first % size);
    std::int64_t made = count / size * size;
    if (skip == 0 && made > 0) {
      block.groups = made / size;
      block.out = out;
      kernel(block);
    } else {
      T group[size];
      block.groups = 1;
      block.out = group;
      kernel(block);
      made = std::min(size - skip, count);
      std::copy_n(group + skip, made, out);
    }
    first += static_cast<std::uint64_t>(made);
    out += made;
    count -= made;
  }
}

template <class T>
fill_block fill_block_of(const variate& what, const random_stream& from) {
  fill_block block{};
  block.source = {from, purpose::main};
  block.variate = variate_block_of(what, element_name<T>::type);
  return block;
}

template <class T>
void fill_any(T* out, std::int64_t count, const variate& what, const random_stream& from,
              std::int64_t first, const execution& how) {
  check_range(first, count);
  check_variate(what);
  check_memory("out", out, count);
  const fill_block block = fill_block_of<T>(what, from);
  const std::int64_t tasks = blocks_of(count, task_elements);
  parallel_for(tasks, how, [&](std::int64_t task, const stop_signal&) {
    const std::int64_t begin = task * task_elements;
    fill_range(block, static_cast<std::uint64_t>(first) + static_cast<std::uint64_t>(begin),
               std::min(task_elements, count - begin), out + begin);
  });
}

/// Sum of squares in four parts, in double, in the same order everywhere.
template <class T>
double sum_of_squares(const T* x, std::int64_t n) {
  double part[4] = {0, 0, 0, 0};
  for (std::int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<double>(x[i]);
    part[i % 4] += value * value;
  }
  return (part[0] + part[1]) + (part[2] + part[3]);
}

/// Normal rows, scaled to the radius (Muller 1959).
template <class T>
void fill_sphere_any(T* out, std::int64_t count, std::int64_t dim, double radius,
                     const random_stream& from, std::int64_t first, const execution& how) {
  check_range(first, count);
  check_at_least("dim", dim, 1);
  check_radius(radius);
  check_matrix_fits("count", count, dim);
  check_memory("out", out, count * dim);
  const fill_block block = fill_block_of<T>({distribution::normal, 0, 1}, from);
  const std::int64_t task_rows = std::max<std::int64_t>(1, task_elements / dim);
  const std::int64_t tasks = blocks_of(count, task_rows);
  parallel_for(tasks, how, [&](std::int64_t task, const stop_signal&) {
    const std::int64_t begin = task * task_rows, rows = std::min(task_rows, count - begin);
    const auto row = static_cast<std::uint64_t>(first) + static_cast<std::uint64_t>(begin);
    T* const points = out + begin * dim;
    fill_range(block, row * static_cast<std::uint64_t>(dim), rows * dim, points);
    for (T* x = points; x != points + rows * dim; x += dim) {
      const double factor = radius / std::sqrt(sum_of_squares(x, dim));
      for (std::int64_t i = 0; i < dim; ++i)
        x[i] = static_cast<T>(static_cast<double>(x[i]) * factor);
    }
  });
}

}  // namespace

namespace random {

void fill(float* out, std::int64_t count, const variate& what, const random_stream& from,
          std::int64_t first, const execution& how) {
  fill_any(out, count, what, from, first, how);
}

void fill(double* out, std::int64_t count, const variate& what, const random_stream& from,
          std::int64_t first, const execution& how) {
  fill_any(out, count, what, from, first, how);
}

void fill_sphere(float* out, std::int64_t count, std::int64_t dim, double radius,
                 const random_stream& from, std::int64_t first, const execution& how) {
  fill_sphere_any(out, count, dim, radius, from, first, how);
}

void fill_sphere(double* out, std::int64_t count, std::int64_t dim, double radius,
                 const random_stream& from, std::int64_t first, const execution& how) {
  fill_sphere_any(out, count, dim, radius, from, first, how);
}

}  // namespace random
}  // namespace attnscale
