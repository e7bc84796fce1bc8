// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "attnscale/montecarlo.hpp"
#include "kernels/random/random.hpp"

namespace attnscale::detail {

/// Constants of a distribution for elements of that type.
variate_block variate_block_of(const variate& what, element_type type);

}  // namespace attnscale::detail
