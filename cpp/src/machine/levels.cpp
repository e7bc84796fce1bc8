// SPDX-License-Identifier: BSD-3-Clause
//
// The units of each level joined to one table, and the choice of kernels by compute type and
// normalizer.
#include "attnscale/normalizer_traits.hpp"
#include "attnscale/problem.hpp"
#include "machine/dispatch.hpp"

namespace attnscale::detail {

#define ATTNSCALE_TYPED(level, type)                                              \
  {                                                                               \
    .softmax = level::softmax.type, .sparse = level::sparse.type,                 \
    .curve = level::scales.curve_##type, .ladder = level::scales.ladder_##type,   \
    .solve = level::scales.solve_##type, .gradient = level::gradient.type,        \
    .linear = level::linear.type, .linear_gradient = level::linear_gradient.type, \
    .product = level::linear.product_##type, .fill = level::random.fill_##type,   \
    .fma_peak = level::random.fma_peak_##type,                                    \
  }
// Constant-initialised, because a table may be used while other files are still initialised.
#define ATTNSCALE_JOIN(called, level, bfloat16_kernels)     \
  extern constinit const level_kernels called##_kernels = { \
      .name = #called,                                      \
      .float32 = ATTNSCALE_TYPED(level, float32),           \
      .float64 = ATTNSCALE_TYPED(level, float64),           \
      .top_keys = level::sparse.top_keys,                   \
      .random = level::random,                              \
      .bfloat16 = (bfloat16_kernels)};
#define ATTNSCALE_JOIN_LEVEL(level) ATTNSCALE_JOIN(level, level, nullptr)
#define ATTNSCALE_JOIN_BFLOAT16(level) ATTNSCALE_JOIN(level, avx512, &level::bfloat16)
#define ATTNSCALE_JOIN_EMULATED(level, other) \
  namespace level {                           \
  extern const bfloat16_unit bfloat16;        \
  }                                           \
  ATTNSCALE_JOIN(level, other, &level::bfloat16)

ATTNSCALE_FOR_BUILT_LEVELS(ATTNSCALE_JOIN_LEVEL)
ATTNSCALE_FOR_BUILT_BFLOAT16_LEVELS(ATTNSCALE_JOIN_BFLOAT16)
#if defined(ATTNSCALE_EMULATE_BFLOAT16)
ATTNSCALE_FOR_EMULATED_LEVELS(ATTNSCALE_JOIN_EMULATED)
#endif

const typed_kernels& active_kernels(element_type compute) {
  const level_kernels& table = active_kernels();
  return compute == element_type::float64 ? table.float64 : table.float32;
}

namespace {

/// Whether queries, keys and values, as far as present, are bfloat16.
bool is_bfloat16(const attention_problem& p) {
  constexpr element_type wanted = element_type::bfloat16;
  if (p.query.type != wanted || p.key.type != wanted) return false;
  return p.heads.empty() || !p.heads[0].output || p.value.type == wanted;
}

/// Kernels of the level in use for a problem of bfloat16 arrays; null: convert to float32.
const bfloat16_unit* bfloat16_unit_for(const attention_problem& p) {
  const bfloat16_unit* const unit = active_kernels().bfloat16;
  const bool own = unit && p.compute == element_type::float32 && is_bfloat16(p);
  return own && !traits_of(p.rule).from_all_scores ? unit : nullptr;
}

}  // namespace

const attend_kernels& attend_kernels_for(const attention_problem& problem) {
  if (const bfloat16_unit* const unit = bfloat16_unit_for(problem)) return unit->attend;
  return attend_kernels_for(problem.compute, problem.rule);
}

const gradient_kernels& gradient_kernels_for(const gradient_problem& problem) {
  const bfloat16_unit* const unit = bfloat16_unit_for(problem);
  const bool has_output = !problem.gradients.empty() && problem.gradients[0].grad_output;
  if (unit && (!has_output || (problem.grad_output.type == element_type::bfloat16 &&
                               problem.value.type == element_type::bfloat16)))
    return unit->gradient;
  return active_kernels(problem.compute).gradient;
}

const attend_kernels& attend_kernels_for(element_type compute, normalizer rule) {
  const typed_kernels& kernels = active_kernels(compute);
  return traits_of(rule).from_all_scores ? kernels.sparse : kernels.softmax;
}

}  // namespace attnscale::detail
