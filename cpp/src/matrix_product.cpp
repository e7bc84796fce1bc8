// SPDX-License-Identifier: BSD-3-Clause
//
// run(product_problem): parts of the results as tasks.
#include "matrix_product.hpp"

#include <algorithm>
#include <cstddef>

#include "attnscale/matrix_product.hpp"
#include "dispatch.hpp"
#include "scratch.hpp"
#include "thread_pool.hpp"

namespace attnscale::detail {
namespace {

std::int64_t parts_of(std::int64_t n, std::int64_t size) { return n / size + (n % size != 0); }

std::ptrdiff_t item_size(element_type type) {
  return type == element_type::float64 ? 8 : type == element_type::float32 ? 4 : 2;
}

const void* moved(const void* data, const matrix_layout& layout, std::ptrdiff_t elements) {
  return static_cast<const char*>(data) + elements * item_size(layout.type);
}

}  // namespace

void run(const product_problem& problem, const execution& how) {
  const product_kernels& kernels = active_kernels(problem.compute).product;
  const std::int64_t down = parts_of(problem.rows, product_rows);
  const std::int64_t across = parts_of(problem.columns, product_columns);
  const auto n_heads = static_cast<std::int64_t>(problem.heads.size());
  parallel_for(n_heads * down * across, how, [&](std::int64_t task, const stop_signal& stop) {
    const product_head& head = problem.heads[static_cast<std::size_t>(task / (down * across))];
    const std::int64_t row = task / across % down * product_rows;
    const std::int64_t column = task % across * product_columns;
    product_block block{};
    block.a = {moved(head.a, problem.a, row * problem.a.row), problem.a};
    block.b = {moved(head.b, problem.b, column * problem.b.column), problem.b};
    block.rows = std::min(product_rows, problem.rows - row);
    block.columns = std::min(product_columns, problem.columns - column);
    block.depth = problem.depth;
    block.out = static_cast<char*>(head.out) +
                (row * problem.columns + column) * item_size(problem.compute);
    block.out_stride = problem.columns;
    block.stop = &stop;
    block.scratch = thread_scratch(kernels.scratch(block));
    kernels.run(block);
  });
}

}  // namespace attnscale::detail
