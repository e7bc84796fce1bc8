// SPDX-License-Identifier: BSD-3-Clause
#pragma once

/// The version, only here: CMake and the Python package read this line.
#define ATTNSCALE_VERSION "0.1.0"

/// The version as numbers, and as one number to compare with: #if ATTNSCALE_VERSION_NUMBER >= 1000
/// is 0.1.0 or later (1000000 * major + 1000 * minor + patch).
#define ATTNSCALE_VERSION_MAJOR 0
#define ATTNSCALE_VERSION_MINOR 1
#define ATTNSCALE_VERSION_PATCH 0
#define ATTNSCALE_VERSION_NUMBER \
  (1000000 * ATTNSCALE_VERSION_MAJOR + 1000 * ATTNSCALE_VERSION_MINOR + ATTNSCALE_VERSION_PATCH)
