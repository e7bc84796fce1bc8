// SPDX-License-Identifier: BSD-3-Clause
//
// Calls before main, after it, and in a thread that ends: the destructors of the library's own
// objects have run by then, or run later. A separate program, which passes if it exits normally.
#include <cstdlib>
#include <thread>

#include "attnscale/attention.hpp"
#include "attnscale/attention_gradients.hpp"

namespace {

/// Attention to equal keys: the mean of the values, with the gradient 1 / 3.
void call() {
  const xt::xarray<float> x = xt::ones<float>({1, 3, 4});
  const auto output = attnscale::attention(x, x, x);
  const auto gradients = attnscale::attention_gradients(
      x, x, x, x, {.normalizer = attnscale::normalizers::entmax(1.5)});
  if (output(0, 2, 3) != 1 || !(gradients.value(0, 0, 0) > 0.99f)) std::_Exit(1);
}

struct caller {
  caller() { call(); }
  ~caller() { call(); }
};

const caller before_and_after_main;
thread_local const caller of_thread;

}  // namespace

int main() {
  std::atexit(call);
  std::thread([] { (void)&of_thread; }).join();
  call();
}
