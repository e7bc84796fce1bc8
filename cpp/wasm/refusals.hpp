// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace attnscale::wasm {

/// Handler of exceptions: `status` is 1 for a refused argument, 2 for a lack of memory. Each
/// program defines it, and it does not return.
[[noreturn]] void refused(int status, const char* text);

}  // namespace attnscale::wasm
