// SPDX-License-Identifier: BSD-3-Clause
//
// Kernels that no function of the module calls: gradients, entmax and top-k. They would be half of
// it, since the table of a level names all units.
#include "kernels/level.hpp"

namespace attnscale::detail::wasm {

constinit const sparse_unit sparse{};
constinit const gradient_unit gradient{};

}  // namespace attnscale::detail::wasm
