// SPDX-License-Identifier: BSD-3-Clause
//
// The backward pass of exact attention.
#include "kernels/gradient/gradient-inl.hpp"
#include "kernels/level.hpp"

namespace {

template <class T>
constexpr attnscale::detail::gradient_kernels kernels = {
    gradient_block_rows<T>, scratch_of<gradient_workspace<T>, gradient_block>, gradient<T>};

}  // namespace

const attnscale::detail::gradient_unit attnscale::detail::ATTNSCALE_LEVEL::gradient = {
    kernels<float>, kernels<double>};
