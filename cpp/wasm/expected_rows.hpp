// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace attnscale::wasm {

/// Expectations over rows of n independent scores of variance beta^2.
struct row_averages {
  double lse, entropy, concentration;
};

/// Expectations for keys that are uniform on a sphere of head_dim >= 2 dimensions, or for normal
/// scores (head_dim 0), as in attnscale.theory.expected_statistics. Refuses n below 1, beta below 0
/// and numbers that are not finite.
row_averages expected_rows(double n, double beta, int head_dim);

}  // namespace attnscale::wasm
