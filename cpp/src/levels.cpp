// SPDX-License-Identifier: BSD-3-Clause
//
// The units of each level, joined to one table, and the way from a compute type and a normalizer to
// the kernels of the level in use.
#include "attnscale/normalizer_traits.hpp"
#include "dispatch.hpp"

namespace attnscale::detail {

#define ATTNSCALE_TYPED(level, type)                                                          \
  {                                                                                           \
    level::softmax.type, level::sparse.type, level::scales.curve_##type,                      \
        level::scales.solve_##type, level::gradient.type, level::linear.type,                 \
        level::linear_gradient.type, level::linear.product_##type, level::random.fill_##type, \
        level::random.fma_peak_##type                                                         \
  }
// Joined before anything runs: a table may be asked for while other files are still initialised.
#define ATTNSCALE_JOIN(level)                              \
  extern constinit const level_kernels level##_kernels = { \
      #level, ATTNSCALE_TYPED(level, float32), ATTNSCALE_TYPED(level, float64), level::random};

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
