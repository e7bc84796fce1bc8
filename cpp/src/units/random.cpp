// SPDX-License-Identifier: BSD-3-Clause
//
// Random numbers, the simulations fused with them, and peak rates of the machine.
#include "kernels/level.hpp"
#include "kernels/machine/peak-inl.hpp"
#include "kernels/random/distances-inl.hpp"
#include "kernels/random/dot_products-inl.hpp"
#include "kernels/random/fill-inl.hpp"
#include "kernels/random/projection-inl.hpp"
#include "kernels/random/simulated_rows-inl.hpp"

const attnscale::detail::random_unit attnscale::detail::ATTNSCALE_LEVEL::random = {
    .fill_float32 = entry<fill<float>>,
    .fill_float64 = entry<fill<double>>,
    .simulate_row = entry<simulate_row>,
    .dots = entry<dots>,
    .panel_columns = panel_lanes,
    .project_scratch = project_scratch,
    .project = entry<project>,
    .distance_scratch = distance_scratch,
    .distance_ratios = entry<distance_ratios>,
    .fma_peak_float32 = entry<fma_peak<float>>,
    .fma_peak_float64 = entry<fma_peak<double>>,
    .read_memory = entry<read_memory>};
