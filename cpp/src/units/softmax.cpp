// SPDX-License-Identifier: BSD-3-Clause
//
// Softmax and the normalizers whose weights are functions of single scores.
#include "kernels/level.hpp"
#include "kernels/softmax/attend-inl.hpp"
#include "kernels/softmax/decode-inl.hpp"

namespace {

using attnscale::detail::attend_kernels;

template <class T>
size_t attend_scratch(const attend_block& block) {
  return is_decode(block) ? scratch_of<decode_workspace<T>>(block)
                          : scratch_of<attend_workspace<T, plain_operands<T>>>(block);
}

template <class T>
void attend(const attend_block& block) noexcept {
  if (is_decode(block)) return decode_run<T>(block).run();
  attend_run<T>(block).run();
}

template <class T>
constexpr attend_kernels kernels = {
    .block_rows = block_rows<T>, .scratch = attend_scratch<T>, .run = entry<attend<T>>};

}  // namespace

const attnscale::detail::softmax_unit attnscale::detail::ATTNSCALE_LEVEL::softmax = {
    .float32 = kernels<float>, .float64 = kernels<double>};
