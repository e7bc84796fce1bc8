// SPDX-License-Identifier: BSD-3-Clause
//
// Softmax, and the normalizers whose weights are functions of single scores, of bfloat16 arrays,
// and their backward pass.
#include "kernels/gradient/bfloat16-inl.hpp"
#include "kernels/gradient/gradient-inl.hpp"
#include "kernels/level.hpp"
#include "kernels/softmax/attend-inl.hpp"
#include "kernels/softmax/bfloat16_operands-inl.hpp"
#include "kernels/softmax/decode-inl.hpp"

#if defined(__AMX_BF16__)
#include "kernels/tile/amx_pairs-inl.hpp"
#else
#include "kernels/tile/vector_pairs-inl.hpp"
#endif

namespace {

#if defined(__AMX_BF16__)
using products = amx_pairs;
#else
using products = vector_pairs;
#endif

using operands = bfloat16_operands<products>;

size_t attend_scratch(const attend_block& block) {
  return is_decode(block) ? scratch_of<decode_workspace<float>>(block)
                          : scratch_of<attend_workspace<float, operands>>(block);
}

void attend(const attend_block& block) noexcept {
  if (is_decode(block)) return decode_run<float>(block).run();
  [[maybe_unused]] const products::session session;
  attend_run<float, operands>(block).run();
}

void gradient(const gradient_block& block) noexcept {
  [[maybe_unused]] const products::session session;
  gradient_run<float, bfloat16_products<products>>(block).run();
}

}  // namespace

const attnscale::detail::bfloat16_unit attnscale::detail::ATTNSCALE_LEVEL::bfloat16 = {
    .attend = {.block_rows = operands::block_rows, .scratch = attend_scratch, .run = attend},
    .gradient = {
        .block_rows = gradient_block_rows<float>,
        .scratch = scratch_of<gradient_scratch<float, bfloat16_products<products>>, gradient_block>,
        .describe = describe_rows,
        .run = gradient}};
