// SPDX-License-Identifier: BSD-3-Clause
#pragma once

/// The one place of the version: CMake and the Python package read this line.
#define ATTNSCALE_VERSION "0.1.0"
