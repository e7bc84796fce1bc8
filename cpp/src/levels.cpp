// SPDX-License-Identifier: BSD-3-Clause
//
// The units of each level, joined to one table, and the way from a compute type and a normalizer to
// the kernels of the level in use.
#include "attnscale/normalizer_traits.hpp"
#include "dispatch.hpp"

namespace attnscale::detail {

#define ATTNSCALE_TYPED(level, type)                                                         \
  {                                                                                          \
    .softmax = level::softmax.type, .sparse = level::sparse.type,                            \
    .curve = level::scales.curve_##type, .solve = level::scales.solve_##type,                \
    .gradient = level::gradient.type, .linear = level::linear.type,                          \
    .linear_gradient = level::linear_gradient.type, .product = level::linear.product_##type, \
    .fill = level::random.fill_##type, .fma_peak = level::random.fma_peak_##type,            \
  }
// Joined before anything runs: a table may be asked for while other files are still initialised.
#define ATTNSCALE_JOIN(level)                              \
  extern constinit const level_kernels level##_kernels = { \
      .name = #level,                                      \
      .float32 = ATTNSCALE_TYPED(level, float32),          \
      .float64 = ATTNSCALE_TYPED(level, float64),          \
      .random = level::random};

ATTNSCALE_FOR_LEVELS(ATTNSCALE_JOIN)

const typed_kernels& active_kernels(element_type compute) {
  const level_kernels& table = active_kernels();
  return compute == element_type::float64 ? table.float64 : table.float32;
}

const attend_kernels& attend_kernels_for(element_type compute, normalizer rule) {
  const typed_kernels& kernels = active_kernels(compute);
  return traits_of(rule).from_all_scores ? kernels.sparse : kernels.softmax;
}

}  // namespace attnscale::detail
