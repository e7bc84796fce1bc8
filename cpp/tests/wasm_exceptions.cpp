// SPDX-License-Identifier: BSD-3-Clause
//
// C++ exceptions in WebAssembly: zig has the sources of their run-time library but builds it for
// WASI without them. They are compiled here, with an operator new that throws.
#define _LIBCPP_BUILDING_LIBRARY
#define _LIBCXXABI_BUILDING_LIBRARY
#define _LIBUNWIND_HIDE_SYMBOLS
#include <threads.h>

#include <libunwind/src/config.h>
#include <unwind.h>
extern "C" {
#include <libunwind/src/Unwind-wasm.c>
}
#include <libcxxabi/src/cxa_aux_runtime.cpp>
#include <libcxxabi/src/cxa_exception.cpp>
#include <libcxxabi/src/cxa_exception_storage.cpp>
#include <libcxxabi/src/cxa_personality.cpp>

#include <cstdlib>
#include <fstream>
#include <new>

// zig's library leaves out file streams, which doctest links.
template class std::basic_filebuf<char>;
template class std::basic_ifstream<char>;

// A C++ exception in WebAssembly: a tag with a pointer.
asm(".globl __cpp_exception\n.tagtype __cpp_exception i32\n__cpp_exception:");

/// Does nothing: a thread that never ends has nothing to destroy.
extern "C" int __cxa_thread_atexit(void (*)(void*), void*, void*) { return 0; }

void* operator new(std::size_t bytes) {
  if (void* const found = std::malloc(bytes > 0 ? bytes : 1)) return found;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
