// SPDX-License-Identifier: BSD-3-Clause
//
// Replacements for kernels that no function of the module calls: gradients, entmax, top-k and
// linear attention. They would be most of its size, since the table of a level names all units.
#include "kernels/level.hpp"

namespace attnscale::detail::wasm {

constinit const sparse_unit sparse{};
constinit const gradient_unit gradient{};
constinit const linear_unit linear{};
constinit const linear_gradient_unit linear_gradient{};

}  // namespace attnscale::detail::wasm
