// SPDX-License-Identifier: BSD-3-Clause
//
// A `throw` without WebAssembly exceptions, whose version differs between engines: the compiler
// leaves handlers out and calls the two functions below, of the C++ ABI for Itanium. Nothing is
// unwound, so an instance in which something was thrown must not be used again.
#include "refusals.hpp"

#include <cstdlib>
#include <exception>
#include <new>
#include <typeinfo>

extern "C" {

void* __cxa_allocate_exception(std::size_t bytes) noexcept {
  alignas(16) static char place[256];
  if (bytes > sizeof place) std::abort();
  return place;
}

/// Reports the exception: every exception of the core has std::exception as its first base.
[[noreturn]] void __cxa_throw(void* thrown, std::type_info*, void (*)(void*)) {
  const auto& error = *static_cast<const std::exception*>(thrown);
  const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  attnscale::wasm::refused(memory ? 2 : 1, error.what());
}

/// Does nothing: a thread that never ends has nothing to destroy.
int __cxa_thread_atexit(void (*)(void*), void*, void*) { return 0; }
}

/// Reports a lack of memory; the library's own operator new ends the program without a message.
void* operator new(std::size_t bytes) {
  if (void* const found = std::malloc(bytes > 0 ? bytes : 1)) return found;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
