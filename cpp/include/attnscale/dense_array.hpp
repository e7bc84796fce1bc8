// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "attnscale/xtensor_compat.hpp"

namespace attnscale {

/// What the calls return and what options keep: an array whose rows are contiguous, as the core
/// writes and reads them, whatever XTENSOR_DEFAULT_LAYOUT is. It is xt::xarray<T> where that is not
/// defined.
template <class T>
using dense_array = xt::xarray<T, xt::layout_type::row_major>;

}  // namespace attnscale
