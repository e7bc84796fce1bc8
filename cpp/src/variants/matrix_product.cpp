// SPDX-License-Identifier: BSD-3-Clause
//
// run(product_problem): parts of the result as tasks.
#include "kernels/linear/matrix_product.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attnscale/detail/product_problem.hpp"
#include "call/row_address.hpp"
#include "machine/dispatch.hpp"
#include "machine/scratch.hpp"
#include "machine/thread_pool.hpp"

namespace attnscale::detail {

void run(const product_problem& problem, const execution& how) {
  const product_kernels& kernels = active_kernels(problem.compute).product;
  const std::int64_t down = blocks_of(problem.rows, product_rows);
  const std::int64_t across = blocks_of(problem.columns, product_columns);
  const auto n_heads = static_cast<std::int64_t>(problem.heads.size());
  parallel_for(n_heads * down * across, how, [&](std::int64_t task, const stop_signal& stop) {
    const product_head& head = problem.heads[static_cast<std::size_t>(task / (down * across))];
    const std::int64_t row = task / across % down * product_rows;
    const std::int64_t column = task % across * product_columns;
    product_block block{};
    block.a = {row_at(head.a, problem.a, row), problem.a};
    block.b = {row_at(head.b, {problem.b.type, problem.b.column}, column), problem.b};
    block.rows = std::min(product_rows, problem.rows - row);
    block.columns = std::min(product_columns, problem.columns - column);
    block.depth = problem.depth;
    block.out = row_at(head.out, {problem.compute, 1}, row * problem.columns + column);
    block.out_stride = problem.columns;
    block.stop = &stop;
    block.scratch = thread_scratch(kernels.scratch(block));
    kernels.run(block);
  });
}

}  // namespace attnscale::detail
