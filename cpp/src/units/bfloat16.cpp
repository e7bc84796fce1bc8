// SPDX-License-Identifier: BSD-3-Clause
//
// Softmax and other normalizers of single scores on bfloat16 arrays, and their backward pass.
#include "kernels/gradient/bfloat16-inl.hpp"
#include "kernels/gradient/gradient-inl.hpp"
#include "kernels/level.hpp"
#include "kernels/softmax/attend-inl.hpp"
#include "kernels/softmax/bfloat16_operands-inl.hpp"
#include "kernels/softmax/decode-inl.hpp"

#if defined(ATTNSCALE_HAS_AMX) || defined(ATTNSCALE_EMULATED_AMX)
#include "kernels/tile/amx_pairs-inl.hpp"
namespace {
using products = amx_pairs;
}
#else
#include "kernels/tile/vector_pairs-inl.hpp"
namespace {
using products = vector_pairs;
}
#endif

#if defined(ATTNSCALE_EMULATED_LEVEL)
#undef ATTNSCALE_LEVEL
#define ATTNSCALE_LEVEL ATTNSCALE_EMULATED_LEVEL
namespace attnscale::detail::ATTNSCALE_LEVEL {
extern const bfloat16_unit bfloat16;
}
#endif

namespace {

// A few queries wait for memory whatever multiplies: they use the kernels of the level that this
// one extends.
#if defined(__AVX512F__)
using attnscale::detail::avx512::softmax;
#elif defined(__AVX2__)
using attnscale::detail::avx2::softmax;
#else
using attnscale::detail::neon::softmax;
#endif

using operands = bfloat16_operands<products>;

size_t attend_scratch(const attend_block& block) {
  return is_decode(block) ? softmax.float32.scratch(block)
                          : scratch_of<attend_workspace<float, operands>>(block);
}

void attend(const attend_block& block) noexcept {
  if (is_decode(block)) return softmax.float32.run(block);
  [[maybe_unused]] const products::session session;
  attend_run<float, operands>(block).run();
}

void gradient(const gradient_block& block) noexcept {
  [[maybe_unused]] const products::session session;
  gradient_run<float, bfloat16_products<products>>(block).run();
}

}  // namespace

const attnscale::detail::bfloat16_unit attnscale::detail::ATTNSCALE_LEVEL::bfloat16 = {
    .attend = {.block_rows = operands::block_rows, .scratch = attend_scratch, .run = entry<attend>},
    .gradient = {
        .block_rows = gradient_block_rows<float>,
        .scratch = scratch_of<gradient_scratch<float, bfloat16_products<products>>, gradient_block>,
        .set_row_parameters = entry<set_row_parameters>,
        .run = entry<gradient>}};
