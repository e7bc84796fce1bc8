// SPDX-License-Identifier: BSD-3-Clause
//
// Random numbers and what is fused with them, and the yardsticks of the machine.
#include "kernels/level.hpp"
#include "kernels/machine/peak-inl.hpp"
#include "kernels/random/distances-inl.hpp"
#include "kernels/random/dot_products-inl.hpp"
#include "kernels/random/fill-inl.hpp"
#include "kernels/random/projection-inl.hpp"
#include "kernels/random/simulated_rows-inl.hpp"

const attnscale::detail::random_unit attnscale::detail::ATTNSCALE_LEVEL::random = {
    fill<float>,     fill<double>,    simulate_row,     dots,
    panel_lanes,     project_scratch, project,          distance_scratch,
    distance_ratios, fma_peak<float>, fma_peak<double>, read_memory};
