// SPDX-License-Identifier: BSD-3-Clause
//
// Linear attention, whose walk over the keys wants threads, is not in the library for WebAssembly.
#include "kernels/level.hpp"

namespace attnscale::detail::wasm {

constinit const linear_unit linear{};
constinit const linear_gradient_unit linear_gradient{};

}  // namespace attnscale::detail::wasm
