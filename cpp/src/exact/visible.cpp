// SPDX-License-Identifier: BSD-3-Clause
//
// count_visible: number of visible keys of each row. Closed form for intervals, a pass over the
// array mask otherwise.
#include <cmath>

#include "attnscale/detail/refuse.hpp"
#include "attnscale/problem.hpp"
#include "exact/blocks.hpp"
#include "kernels/simd/float16.hpp"
#include "machine/thread_cost.hpp"
#include "machine/thread_pool.hpp"

namespace attnscale {
namespace {

using namespace detail;

/// Number of elements of a row of the mask that leave their key visible.
template <class M, class Sees>
std::int64_t count_seen(const void* mask, std::ptrdiff_t start, std::ptrdiff_t step,
                        const key_interval& keys, Sees sees) {
  const M* const row = static_cast<const M*>(mask) + start;
  std::int64_t count = 0;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) count += sees(row[j * step]);
  return count;
}

std::int64_t count_row(const score_problem& p, const attention_head& head, std::int64_t i) {
  const key_interval seen = visible_keys(p, head, i);
  if (p.mask_type == mask_kind::none) return p.leading_keys + seen.end - seen.begin;
  const void* const mask = head.attn_mask;
  const std::ptrdiff_t start = i * p.attn_mask.row, step = p.attn_mask.column;
  if (p.mask_type == mask_kind::boolean)
    return count_seen<std::uint8_t>(mask, start, step, seen, [](auto x) { return x != 0; });
  const double hiding = hiding_number[static_cast<int>(p.attn_mask.type)];
  const auto low = static_cast<float>(hiding);
  // 16-bit numbers by their bits: count those from the hiding number down to -inf.
  const auto count_bits = [&](std::uint16_t first, std::uint16_t last) {
    return count_seen<std::uint16_t>(mask, start, step, seen,
                                     [=](auto x) { return x < first || x > last; });
  };
  switch (p.attn_mask.type) {
    case element_type::float32:
      return count_seen<float>(mask, start, step, seen, [=](auto x) { return !(x <= low); });
    case element_type::float64:
      return count_seen<double>(mask, start, step, seen, [=](auto x) { return !(x <= hiding); });
    case element_type::float16:
      return count_bits(float16_from_float(low), 0xfc00);
    case element_type::bfloat16:
      return count_bits(bfloat16_from_float(low), 0xff80);
  }
  __builtin_unreachable();
}

}  // namespace

void count_visible(const score_problem& problem, std::int64_t* counts, const execution& how) {
  check_leading_keys(problem);
  check_threads(how.num_threads);
  // Rows per task: enough work to be worth handing out.
  constexpr std::int64_t rows = 64;
  const std::int64_t blocks = (problem.n_queries + rows - 1) / rows;
  const auto heads = static_cast<std::int64_t>(problem.heads.size());
  // About a nanosecond for each element of a mask.
  const std::int64_t keys = problem.mask_type == mask_kind::none ? 0 : problem.n_keys;
  const double nanoseconds = static_cast<double>(heads) * static_cast<double>(problem.n_queries) *
                             static_cast<double>(keys);
  parallel_for(heads * blocks, one_thread_if_short(how, nanoseconds),
               [&](std::int64_t task, const stop_signal& stop) {
                 const std::int64_t head = task / blocks, first = task % blocks * rows;
                 const std::int64_t last = std::min(first + rows, problem.n_queries);
                 for (std::int64_t i = first; i < last && !stop.requested(); ++i)
                   counts[head * problem.n_queries + i] =
                       count_row(problem, problem.heads[head], i);
               });
}

}  // namespace attnscale
