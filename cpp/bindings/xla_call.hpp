// SPDX-License-Identifier: BSD-3-Clause
//
// Attention and its backward pass as foreign functions of XLA. python/attnscale/jax/_ffi.py makes
// the calls, whose options and arrays have been checked there.
#pragma once

#include "xla_abi.hpp"

namespace attnscale::bindings::xla {

/// Writes "output" and the statistics that are among the results.
handler attend;
/// Writes the gradients of "query", "key" and others of the arguments that are among the results.
handler gradients;

}  // namespace attnscale::bindings::xla
