// SPDX-License-Identifier: BSD-3-Clause
//
// The entropy of attention over n random keys grows with n under the standard scale, and less under
// one that grows as ln n. Both laws see the same rows, drawn until the error is 0.002 nats.
#include <attnscale/experiments.hpp>
#include <cmath>
#include <cstdio>

int main() {
  namespace laws = attnscale::laws;
  std::printf("%6s %6s %18s %18s %8s\n", "n", "ln n", "standard", "log_n(base=512)", "rows");
  double standard = 0, log_n = 0;
  bool grows = true;  // by more under the standard scale
  for (const std::int64_t n : {128, 512, 2048, 8192}) {
    const auto found =
        attnscale::entropy_vs_length({.n = n, .law = {laws::standard{}, laws::log_n{.base = 512}}},
                                     {.target_error = 0.002, .seed = 0});
    std::printf("%6lld %6.3f %9.4f +- %.4f %9.4f +- %.4f %8lld\n", static_cast<long long>(n),
                std::log(double(n)), found.value(0), found.standard_error(0), found.value(1),
                found.standard_error(1), static_cast<long long>(found.samples));
    if (n > 128) grows &= found.value(0) - standard > found.value(1) - log_n;
    standard = found.value(0);
    log_n = found.value(1);
  }
  return grows ? 0 : 1;
}
