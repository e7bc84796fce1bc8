// SPDX-License-Identifier: BSD-3-Clause
//
// count_visible: how many keys each row may see. Closed form for intervals, a pass over the
// array mask otherwise.
#include <cmath>

#include "attnscale/problem.hpp"
#include "blocks.hpp"
#include "kernels/simd/float16.hpp"
#include "thread_pool.hpp"

namespace attnscale {
namespace {

using namespace detail;

bool hides(const void* mask, element_type type, std::ptrdiff_t i) {
  switch (type) {
    case element_type::float32:
      return static_cast<const float*>(mask)[i] == -std::numeric_limits<float>::infinity();
    case element_type::float64:
      return static_cast<const double*>(mask)[i] == -std::numeric_limits<double>::infinity();
    case element_type::float16:
      return static_cast<const std::uint16_t*>(mask)[i] == 0xfc00u;
    case element_type::bfloat16:
      return static_cast<const std::uint16_t*>(mask)[i] == 0xff80u;
  }
  __builtin_unreachable();
}

std::int64_t count_row(const score_problem& p, const attention_head& head, std::int64_t i) {
  const key_interval seen = visible_keys(p, head, i);
  if (p.mask_type == mask_kind::none) return p.leading_keys + seen.end - seen.begin;
  std::int64_t count = 0;
  const std::ptrdiff_t row = i * p.attn_mask.row;
  const auto* bytes = static_cast<const std::uint8_t*>(head.attn_mask);
  for (std::int64_t j = seen.begin; j < seen.end; ++j) {
    const std::ptrdiff_t at = row + j * p.attn_mask.column;
    count += p.mask_type == mask_kind::boolean ? bytes[at] != 0
                                               : !hides(head.attn_mask, p.attn_mask.type, at);
  }
  return count;
}

}  // namespace

void count_visible(const score_problem& problem, std::int64_t* counts, const execution& how) {
  check_leading_keys(problem);
  // Rows of a task: enough work to be worth a hand-out.
  constexpr std::int64_t rows = 64;
  const std::int64_t blocks = (problem.n_queries + rows - 1) / rows;
  const auto heads = static_cast<std::int64_t>(problem.heads.size());
  execution serial = how;
  if (problem.mask_type == mask_kind::none) serial.num_threads = 1;
  parallel_for(heads * blocks, serial, [&](std::int64_t task, const stop_signal& stop) {
    const std::int64_t head = task / blocks, first = task % blocks * rows;
    const std::int64_t last = std::min(first + rows, problem.n_queries);
    for (std::int64_t i = first; i < last && !stop.requested(); ++i)
      counts[head * problem.n_queries + i] = count_row(problem, problem.heads[head], i);
  });
}

}  // namespace attnscale
