// SPDX-License-Identifier: BSD-3-Clause
//
// Entmax and top-k, which need all scores of a row at once, and the strongest keys of a row.
#include "kernels/level.hpp"
#include "kernels/sparse/lists-inl.hpp"
#include "kernels/sparse/top_keys-inl.hpp"

namespace {

using attnscale::detail::attend_block;
using attnscale::detail::attend_kernels;

template <class T>
void list(const attend_block& block) noexcept {
  list_rows<T>(block).run();
}

template <class T>
constexpr attend_kernels kernels = {.block_rows = block_rows<T>,
                                    .scratch = scratch_of<list_workspace<T>, attend_block>,
                                    .run = entry<list<T>>};

}  // namespace

const attnscale::detail::sparse_unit attnscale::detail::ATTNSCALE_LEVEL::sparse = {
    .float32 = kernels<float>,
    .float64 = kernels<double>,
    .top_keys = {.block_rows = block_rows<double>,
                 .capacity = top_capacity,
                 .scratch = scratch_of<top_workspace, top_keys_block>,
                 .run = entry<find_top_keys>}};
