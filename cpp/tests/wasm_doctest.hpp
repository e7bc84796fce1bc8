// SPDX-License-Identifier: BSD-3-Clause
//
// Included before all other headers: doctest treats WASI as a system without exceptions, and the
// system's headers have to know that.
#include <wasi/api.h>
#undef __wasi__
