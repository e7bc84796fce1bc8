// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "kernels/level.hpp"

namespace attnscale::detail {

/// The kernels of the level called `requested`; null or empty: of the best level that this CPU
/// has. An unknown or unsupported name is a std::runtime_error that lists the choices.
const level_kernels& kernels_for(const char* requested);

}  // namespace attnscale::detail
