// SPDX-License-Identifier: BSD-3-Clause
//
// Refusals that are about arrays.
#pragma once

#include <string>

#include "attnscale/refuse.hpp"
#include "attnscale/strided_array.hpp"

namespace attnscale::detail {

/// `array` has to broadcast to `shape`, whose axes `axes` names.
inline void check_broadcast(const char* name, const strided_array& array, const extents& shape,
                            const char* axes) {
  const int n = static_cast<int>(shape.size());
  bool fits = array.dimension() <= n;
  for (int axis = 1; fits && axis <= array.dimension(); ++axis)
    fits = array.extent(axis) == 1 || array.extent(axis) == shape[std::size_t(n - axis)];
  if (!fits)
    refuse(std::string(name) + " must broadcast to " + axes + " = " + text_of(shape) +
           ", got shape " + text_of(array.shape()));
}

}  // namespace attnscale::detail
