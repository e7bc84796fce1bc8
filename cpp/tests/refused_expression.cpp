// SPDX-License-Identifier: BSD-3-Clause
//
// A file that must not compile; CMakeLists.txt looks for the reason in the compiler's output.
#include "attnscale/attention.hpp"

int main() {
  const xt::xarray<double> x = xt::ones<double>({3, 4});
  return attnscale::attention_entropy(x * 2, x).size() == 3;
}
