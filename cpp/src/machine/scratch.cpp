// SPDX-License-Identifier: BSD-3-Clause
#include "machine/scratch.hpp"

#include <memory>

namespace attnscale::detail {
namespace {

struct scratch_area {
  std::unique_ptr<aligned_buffer> buffer;
  std::size_t size = 0;
};

/// Maximum memory kept: a huge head_dim must not pin memory for the thread's life.
constexpr std::size_t keep_at_most = std::size_t{4} << 20;

}  // namespace

void* thread_scratch(std::size_t bytes) {
  auto& area = kept_by_thread<scratch_area>();
  const bool wasteful = area.size > keep_at_most && bytes < area.size / 2;
  if (bytes > area.size || wasteful) {
    area.buffer.reset();
    area.size = 0;
    area.buffer = std::make_unique<aligned_buffer>(bytes);
    area.size = bytes;
  }
  return area.buffer->data();
}

}  // namespace attnscale::detail
