// SPDX-License-Identifier: BSD-3-Clause
//
// Does not compile, and CMakeLists.txt looks for the reason in what the compiler says.
#include "attnscale/attention.hpp"

int main() {
  const xt::xarray<double> x = xt::ones<double>({3, 4});
  return attnscale::attention_entropy(x * 2, x).size() == 3;
}
