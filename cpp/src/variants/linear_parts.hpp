// SPDX-License-Identifier: BSD-3-Clause
//
// Parts of the loops over heads: the chunks of a sequence, the ranges of its numbers, and the
// projection as kernels read it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "call/row_address.hpp"
#include "kernels/linear/linear.hpp"
#include "machine/scratch.hpp"

namespace attnscale::detail {

/// Maximum number of chunks, because each has its own sums, and minimum length, because sums are
/// merged after each.
inline constexpr std::int64_t most_chunks = 64, least_chunk = 1024;

inline std::int64_t chunk_rows(std::int64_t n) {
  return std::max(least_chunk, (n / most_chunks / 64 + 1) * 64);
}

inline std::int64_t n_chunks(std::int64_t n) {
  return n / chunk_rows(n) + (n % chunk_rows(n) != 0);
}

/// Rows [begin, end) of a chunk.
inline std::pair<std::int64_t, std::int64_t> chunk(std::int64_t index, std::int64_t n) {
  const std::int64_t rows = chunk_rows(n);
  return {index * rows, std::min(n, (index + 1) * rows)};
}

inline linear_range unseen() {
  constexpr double none = std::numeric_limits<double>::infinity();
  return {none, none, none, none, false};
}

inline void fold(linear_range& into, const linear_range& more) {
  into.query = std::min(into.query, more.query);
  into.key = std::min(into.key, more.key);
  into.value = std::min(into.value, more.value);
  into.grad = std::min(into.grad, more.grad);
  into.overflow = into.overflow || more.overflow;
}

/// Whether a product of a query, a key and a value may have lost digits to underflow, or
/// overflowed. Only non-zero factors matter.
inline bool is_unsafe(const linear_range& seen, bool wide) {
  const double least =
      wide ? std::numeric_limits<double>::min() : double{std::numeric_limits<float>::min()};
  const double product = std::min(seen.query, 1.0) * std::min(seen.key, 1.0) *
                         std::min(seen.value, 1.0) * std::min(seen.grad, 1.0);
  return seen.overflow || product < least;
}

/// Zeros the rows [begin, end).
inline void zero_rows(void* data, const matrix_layout& layout, std::int64_t begin, std::int64_t end,
                      std::int64_t columns) {
  const std::ptrdiff_t size = item_size(layout.type);
  for (std::int64_t row = begin; row < end; ++row) {
    auto* const to = static_cast<char*>(row_at(data, layout, row));
    for (std::int64_t c = 0; c < columns; ++c)
      std::fill_n(to + c * layout.column * size, size, char{0});
  }
}

/// The projection in the compute type, with rows padded to whole vectors of any level, and its
/// transpose.
class padded_projection {
 public:
  padded_projection(linear_form& form, bool wide) : memory_(size(form, wide)) {
    if (form.map != feature_map::projected) return;
    if (wide)
      fill<double>(form);
    else
      fill<float>(form);
  }

 private:
  static std::ptrdiff_t whole(std::int64_t n) { return (n + 15) / 16 * 16; }
  static std::size_t size(const linear_form& form, bool wide) {
    if (form.map != feature_map::projected) return 0;
    const std::int64_t there = form.head_dim * whole(form.features);
    const std::int64_t back = form.features * whole(form.head_dim);
    // At least one vector: kernels advance this pointer, which may not be null.
    return static_cast<std::size_t>(std::max<std::int64_t>(there + back, 16)) * (wide ? 8 : 4);
  }

  template <class T>
  void fill(linear_form& form) {
    const auto* const from = static_cast<const double*>(form.projection);
    const std::ptrdiff_t stride = whole(form.features), back_stride = whole(form.head_dim);
    auto* const there = static_cast<T*>(memory_.data());
    auto* const back = there + form.head_dim * stride;
    std::fill_n(there, form.head_dim * stride + form.features * back_stride, T(0));
    for (std::int64_t row = 0; row < form.head_dim; ++row)
      for (std::int64_t f = 0; f < form.features; ++f)
        there[row * stride + f] = back[f * back_stride + row] =
            static_cast<T>(from[row * form.features + f]);
    form.projection = there;
    form.projection_stride = stride;
    form.back = back;
    form.back_stride = back_stride;
  }

  aligned_buffer memory_;
};

}  // namespace attnscale::detail
