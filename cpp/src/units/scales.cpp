// SPDX-License-Identifier: BSD-3-Clause
//
// Rows at many scales: curves of entropy, ladders of scales, and the scale that gives an entropy.
#include "kernels/level.hpp"
#include "kernels/softmax/curve-inl.hpp"
#include "kernels/softmax/ladder-inl.hpp"
#include "kernels/softmax/solve-inl.hpp"

namespace {

template <class T>
constexpr attnscale::detail::curve_kernels curves = {
    .block_rows = block_rows<T>,
    .scratch = scratch_of<curve_workspace<T>, curve_block>,
    .run = entry<curve<T>>};
template <class T>
constexpr attnscale::detail::ladder_kernels ladders = {
    .block_rows = block_rows<T>,
    .scratch = scratch_of<ladder_workspace<T>, ladder_block>,
    .run = entry<ladder<T>>,
    .received_scratch = scratch_of<received_ladder_workspace<T>, received_ladder_block>,
    .run_received = entry<received_ladder<T>>};
template <class T>
constexpr attnscale::detail::solve_kernels solvers = {.lanes = width<T>,
                                                      .panel_rows = panel_vectors* width<T>,
                                                      .scratch = solve_scratch<T>,
                                                      .gather = entry<solve_gather<T>>,
                                                      .evaluate = entry<solve_evaluate<T>>};

}  // namespace

const attnscale::detail::scales_unit attnscale::detail::ATTNSCALE_LEVEL::scales = {
    .curve_float32 = curves<float>,
    .curve_float64 = curves<double>,
    .ladder_float32 = ladders<float>,
    .ladder_float64 = ladders<double>,
    .solve_float32 = solvers<float>,
    .solve_float64 = solvers<double>};
