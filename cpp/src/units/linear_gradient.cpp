// SPDX-License-Identifier: BSD-3-Clause
//
// The backward pass of linear-time attention.
#include "kernels/level.hpp"
#include "kernels/linear/key_gradients-inl.hpp"
#include "kernels/linear/query_gradients-inl.hpp"

namespace {

template <class T>
constexpr attnscale::detail::linear_gradient_kernels kernels = {
    .scratch = scratch_of<linear_gradient_workspace<T>, linear_form>,
    .query_gradients = entry<linear_query_gradients<T>>,
    .key_gradients = entry<linear_key_gradients<T>>};

}  // namespace

const attnscale::detail::linear_gradient_unit attnscale::detail::ATTNSCALE_LEVEL::linear_gradient =
    {.float32 = kernels<float>, .float64 = kernels<double>};
