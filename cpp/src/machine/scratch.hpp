// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <new>
#include <utility>

namespace attnscale::detail {

/// Uninitialised memory aligned to a cache line (and an AVX-512 vector).
class aligned_buffer {
 public:
  explicit aligned_buffer(std::size_t bytes)
      : data_(bytes ? ::operator new(bytes, alignment) : nullptr) {}
  ~aligned_buffer() { ::operator delete(data_, alignment); }
  aligned_buffer(aligned_buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  aligned_buffer(const aligned_buffer&) = delete;
  aligned_buffer& operator=(const aligned_buffer&) = delete;
  void* data() const { return data_; }

 private:
  static constexpr std::align_val_t alignment{64};
  void* data_;
};

/// Deletes a T when its thread ends, and records that.
template <class T>
struct thread_owner {
  T*& kept;
  bool& ended;
  ~thread_owner() {
    delete std::exchange(kept, nullptr);
    ended = true;
  }
};

/// This thread's T, kept between calls. After the thread's destructors have run (in a static
/// destructor, an atexit handler) a call gets a new one, which the process keeps.
template <class T>
T& kept_by_thread() {
  static thread_local T* kept = nullptr;
  static thread_local bool ended = false;
  if (kept == nullptr) {
    kept = new T;
    if (!ended) static thread_local const thread_owner<T> owner{kept, ended};
  }
  return *kept;
}

/// This thread's scratch area, kept between calls because fresh pages cost more than a short
/// attention call. Valid until the next call on this thread.
void* thread_scratch(std::size_t bytes);

}  // namespace attnscale::detail
