// SPDX-License-Identifier: BSD-3-Clause
//
// Rows at many scales: curves of entropy, and the scale that gives an entropy.
#include "kernels/level.hpp"
#include "kernels/softmax/curve-inl.hpp"
#include "kernels/softmax/solve-inl.hpp"

namespace {

template <class T>
constexpr attnscale::detail::curve_kernels curves = {
    block_rows<T>, scratch_of<curve_workspace<T>, curve_block>, curve<T>};
template <class T>
constexpr attnscale::detail::solve_kernels solvers = {
    width<T>, panel_vectors* width<T>, solve_scratch<T>, solve_gather<T>, solve_evaluate<T>};

}  // namespace

const attnscale::detail::scales_unit attnscale::detail::ATTNSCALE_LEVEL::scales = {
    curves<float>, curves<double>, solvers<float>, solvers<double>};
