// SPDX-License-Identifier: BSD-3-Clause
//
// Included before all else: doctest takes WASI for a system without exceptions, which headers of
// the system have to know.
#include <wasi/api.h>
#undef __wasi__
