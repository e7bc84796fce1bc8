// SPDX-License-Identifier: BSD-3-Clause
//
// Linear-time attention, and the product of two matrices.
#include "kernels/level.hpp"
#include "kernels/linear/linear-inl.hpp"
#include "kernels/linear/matrix_product-inl.hpp"

namespace {

template <class T>
constexpr attnscale::detail::linear_kernels kernels = {
    .scratch = scratch_of<linear_workspace<T>, linear_form>, .run = entry<linear<T>>};

template <class T>
constexpr attnscale::detail::product_kernels products = {
    .scratch = scratch_of<product_workspace<T>, product_block>, .run = entry<matrix_product<T>>};

}  // namespace

const attnscale::detail::linear_unit attnscale::detail::ATTNSCALE_LEVEL::linear = {
    .float32 = kernels<float>,
    .float64 = kernels<double>,
    .product_float32 = products<float>,
    .product_float64 = products<double>};
