// SPDX-License-Identifier: BSD-3-Clause
//
// The backward pass of exact attention.
#include "kernels/gradient/gradient-inl.hpp"
#include "kernels/level.hpp"

namespace {

template <class T>
void gradient(const gradient_block& block) noexcept {
  gradient_run<T, widened_products>(block).run();
}

template <class T>
constexpr attnscale::detail::gradient_kernels kernels = {
    .block_rows = gradient_block_rows<T>,
    .scratch = scratch_of<gradient_scratch<T, widened_products>, gradient_block>,
    .set_row_parameters = entry<set_row_parameters>,
    .run = entry<gradient<T>>};

}  // namespace

const attnscale::detail::gradient_unit attnscale::detail::ATTNSCALE_LEVEL::gradient = {
    .float32 = kernels<float>, .float64 = kernels<double>};
