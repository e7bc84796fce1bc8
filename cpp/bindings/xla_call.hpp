// SPDX-License-Identifier: BSD-3-Clause
//
// Attention and its backward pass as foreign functions of XLA. python/attnscale/jax/_ffi.py makes
// the calls, and checks their options and arrays.
#pragma once

#include "xla_abi.hpp"

namespace attnscale::bindings::xla {

/// Writes "output" and the statistics that are among the results.
handler attend;
/// Writes the gradients of "query", "key" and other arguments that are among the results.
handler gradients;

}  // namespace attnscale::bindings::xla
