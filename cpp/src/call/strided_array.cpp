// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/detail/strided_array.hpp"

#include "attnscale/detail/refuse.hpp"

namespace attnscale {

using detail::refuse;
using detail::text_of;

strided_array strided_array::with_inner(int inner) const {
  strided_array other = *this;
  other.inner_ = inner;
  return other;
}

strided_array strided_array::transposed() const {
  strided_array swapped = *this;
  std::swap(swapped.shape_[at_axis(1)], swapped.shape_[at_axis(2)]);
  std::swap(swapped.strides_[at_axis(1)], swapped.strides_[at_axis(2)]);
  return swapped;
}

strided_array strided_array::rows(std::int64_t first, std::int64_t last) const {
  strided_array part = *this;
  if (extent(2) > 1) part.data_ += first * stride(2) * item_size_;
  part.shape_[at_axis(2)] = last - first;
  return part;
}

strided_array strided_array::with_axis_of_heads() const {
  strided_array wide = *this;
  wide.shape_.insert(shape_.size() - 2, 1);
  wide.strides_.insert(strides_.size() - 2, 0);
  return wide;
}

integer_array strided_array::integers() const {
  return {reinterpret_cast<const std::int64_t*>(data_), shape_, strides_};
}

std::pair<std::uintptr_t, std::uintptr_t> strided_array::memory() const {
  std::ptrdiff_t first = 0, last = 0;
  for (int axis = 1; axis <= dimension(); ++axis) {
    if (extent(axis) == 0) return {};
    const std::ptrdiff_t steps = (extent(axis) - 1) * stride(axis);
    (steps < 0 ? first : last) += steps;
  }
  const auto address = [&](std::ptrdiff_t element) {
    return reinterpret_cast<std::uintptr_t>(data_ + element * item_size_);
  };
  return {address(first), address(last + 1)};
}

void strided_array::check_no_elements() const {
  for (const std::int64_t extent : shape_)
    if (extent == 0) return;
  refuse("an array of shape " + text_of(shape_) + " must have memory, got a null pointer");
}

std::int64_t count_entries(const extents& shape) { return detail::entries_of(shape); }

extents row_major(const extents& shape) {
  extents strides(shape.size(), 1);
  for (std::size_t axis = shape.size(); axis-- > 1;)
    strides[axis - 1] = strides[axis] * shape[axis];
  return strides;
}

extents joined(extents shape, std::initializer_list<std::int64_t> inner) {
  for (const std::int64_t extent : inner) shape.push_back(extent);
  return shape;
}

void check_broadcast(const char* name, const strided_array& array, const extents& shape,
                     const char* axes) {
  const int n = static_cast<int>(shape.size());
  bool fits = array.dimension() <= n;
  for (int axis = 1; fits && axis <= array.dimension(); ++axis)
    fits = array.extent(axis) == 1 || array.extent(axis) == shape[std::size_t(n - axis)];
  if (!fits)
    refuse(std::string(name) + " must broadcast to " + axes + " = " + text_of(shape) +
           ", got shape " + text_of(array.shape()));
}

row_array<double> broadcast_rows(const row_array<double>& rows, const extents& shape) {
  const strided_array given(rows, 0);
  row_array<double> all{{shape.begin(), shape.end()}, {}};
  all.numbers.reserve(static_cast<std::size_t>(count_entries(shape)));
  for_each_index(shape, [&](const extents& index) {
    all.numbers.push_back(*static_cast<const double*>(given.at(index, shape)));
  });
  return all;
}

row_array<double> sum_heads(const strided_array& heads, const extents& leading,
                            const extents& shape) {
  const int inner = heads.dimension() - static_cast<int>(leading.size());
  row_array<double> sum{{shape.begin(), shape.end()}, {}};
  sum.numbers.resize(static_cast<std::size_t>(count_entries(shape)));
  const strided_array from = heads.with_inner(inner), to(sum, inner);
  const std::int64_t rows = inner == 2 ? from.extent(2) : 1, columns = from.extent(1);
  const std::ptrdiff_t row_step = inner == 2 ? to.stride(2) : 0, column_step = to.stride(1);
  for_each_index(leading, [&](const extents& index) {
    const void* const numbers = from.at(index, leading);
    auto* const at = static_cast<double*>(to.place(index, leading));
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t column = 0; column < columns; ++column)
        at[row * row_step + column * column_step] +=
            detail::number_at(numbers, heads.layout().type, row * columns + column);
  });
  return sum;
}

}  // namespace attnscale
