// SPDX-License-Identifier: BSD-3-Clause
//
// run(dot_products_problem): sums of powers of the samples, in double and in a fixed order for any
// tasks: parts of at most part_samples samples, then the parts of a block.
#include <algorithm>
#include <vector>

#include "attnscale/detail/refuse.hpp"
#include "attnscale/montecarlo.hpp"
#include "experiments/montecarlo_checks.hpp"
#include "experiments/variate_block.hpp"
#include "kernels/level.hpp"
#include "machine/thread_pool.hpp"

namespace attnscale {
namespace {

using namespace detail;

constexpr std::int64_t part_samples = 4096;

void add(power_sums& to, const power_sums& from) {
  to.s += from.s;
  to.s2 += from.s2;
  to.s3 += from.s3;
  to.s4 += from.s4;
}

power_sums sums_of(const double* s, std::int64_t count) {
  power_sums sums{};
  for (std::int64_t i = 0; i < count; ++i) {
    const double square = s[i] * s[i];
    add(sums, {s[i], square, square * s[i], square * square});
  }
  return sums;
}

class sampler {
 public:
  explicit sampler(const dot_products_problem& p)
      : p_(p),
        x_(variate_block_of(p.x, element_type::float32)),
        y_(variate_block_of(p.y, element_type::float32)),
        part_(std::min(p.block, part_samples)),
        parts_of_block_((p.block - 1) / part_ + 1) {}

  /// Number of parts of all blocks; the last block may be shorter.
  std::int64_t parts() const {
    const std::int64_t whole = p_.count / p_.block, rest = p_.count % p_.block;
    return whole * parts_of_block_ + (rest + part_ - 1) / part_;
  }
  std::int64_t parts_of_block() const { return parts_of_block_; }
  std::int64_t parts_of_task() const { return std::max<std::int64_t>(1, part_samples / part_); }

  /// Sums consecutive parts [begin, end).
  void sum_parts(std::int64_t begin, std::int64_t end, power_sums* out,
                 const stop_signal& stop) const {
    const std::int64_t from = start_of(begin), to = stop_of(end - 1);
    const auto first = static_cast<std::uint64_t>(p_.first) + static_cast<std::uint64_t>(from);
    const auto skipped = static_cast<std::int64_t>(first % group_blocks);
    const std::int64_t groups = (skipped + to - from + group_blocks - 1) / group_blocks;
    std::vector<double> samples(static_cast<std::size_t>(groups * group_blocks));
    active_kernels().random.dots(
        {p_.from, x_, y_, first / group_blocks, groups, p_.head_dim, samples.data(), &stop});
    for (std::int64_t k = begin; k < end; ++k) {
      const std::int64_t start = start_of(k);
      out[k] = sums_of(samples.data() + skipped + start - from, stop_of(k) - start);
    }
  }

 private:
  std::int64_t start_of(std::int64_t part) const {
    return part / parts_of_block_ * p_.block + part % parts_of_block_ * part_;
  }
  std::int64_t stop_of(std::int64_t part) const {
    const std::int64_t block_end = (part / parts_of_block_ + 1) * p_.block;
    return std::min({start_of(part) + part_, block_end, p_.count});
  }

  const dot_products_problem& p_;
  variate_block x_, y_;
  std::int64_t part_, parts_of_block_;
};

}  // namespace

void run(const dot_products_problem& p, power_sums* out, const execution& how) {
  check_dot_products(p);
  check_memory("out", out, p.count);
  const sampler samples(p);
  const std::int64_t n = samples.parts(), step = samples.parts_of_task();
  std::vector<power_sums> parts(static_cast<std::size_t>(n));
  parallel_for((n + step - 1) / step, how, [&](std::int64_t task, const stop_signal& stop) {
    samples.sum_parts(task * step, std::min(n, (task + 1) * step), parts.data(), stop);
  });
  for (std::int64_t k = 0; k < n; ++k) {
    power_sums& block = out[k / samples.parts_of_block()];
    if (k % samples.parts_of_block() == 0) block = {};
    add(block, parts[static_cast<std::size_t>(k)]);
  }
}

}  // namespace attnscale
