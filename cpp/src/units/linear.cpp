// SPDX-License-Identifier: BSD-3-Clause
//
// Linear-time attention.
#include "kernels/level.hpp"
#include "kernels/linear/linear-inl.hpp"

namespace {

template <class T>
constexpr attnscale::detail::linear_kernels kernels = {scratch_of<linear_workspace<T>, linear_form>,
                                                       linear<T>};

}  // namespace

const attnscale::detail::linear_unit attnscale::detail::ATTNSCALE_LEVEL::linear = {kernels<float>,
                                                                                   kernels<double>};
