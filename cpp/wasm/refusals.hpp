// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace attnscale::wasm {

/// What becomes of an exception: `status` is 1 where an argument was refused, 2 where memory is
/// short. Each program defines it, and it does not return.
[[noreturn]] void refused(int status, const char* text);

}  // namespace attnscale::wasm
