// SPDX-License-Identifier: BSD-3-Clause
//
// Plain calls of attention: arrays of one type, a softmax with or without a sink, a scale that is a
// number, an array or a law of a count, a soft-cap, and options that hide keys. They are read here,
// because reading a call in Python takes longer than computing a short one. For any other call the
// result is None; Python then reads it, and has the messages for errors.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "attnscale/detail/call_description.hpp"
#include "call.hpp"
#include "plain_options.hpp"

namespace attnscale::bindings {

/// An array (..., n, heads, dim) as (..., heads, n, dim), and back; without an axis of heads
/// unchanged.
inline strided_array heads_swapped(const strided_array& array) {
  const std::size_t n = array.shape().size();
  if (n < 3) return array;
  extents shape = array.shape(), strides(n, 0);
  for (std::size_t axis = 0; axis < n; ++axis)
    strides[axis] = array.stride(static_cast<int>(n - axis));
  std::swap(shape[n - 3], shape[n - 2]);
  std::swap(strides[n - 3], strides[n - 2]);
  return {array.place({}, {}), array.layout().type, array.item_size(), shape, strides, 2};
}

/// Whether the array broadcasts to `shape`, and has no more axes.
inline bool broadcasts(const strided_array& array, const extents& shape) {
  const int n = static_cast<int>(shape.size());
  if (array.dimension() > n) return false;
  for (int axis = 1; axis <= array.dimension(); ++axis)
    if (array.extent(axis) != 1 && array.extent(axis) != shape[static_cast<std::size_t>(n - axis)])
      return false;
  return true;
}

/// Calls visit(number) for the numbers of an array that broadcasts to `shape`, in C order, until it
/// returns false.
template <class Visit>
void for_each_number(const strided_array& array, const extents& shape, Visit visit) {
  const void* const data = array.place({}, {});
  const int n = static_cast<int>(shape.size());
  extents index(shape.size(), 0);
  std::ptrdiff_t at = 0;
  for (std::int64_t left = count_entries(shape); left > 0; --left) {
    if (!visit(detail::number_at(data, array.layout().type, at))) return;
    for (int axis = 1; axis <= n; ++axis) {
      std::int64_t& place = index[static_cast<std::size_t>(n - axis)];
      const std::int64_t extent = shape[static_cast<std::size_t>(n - axis)];
      at += array.stride(axis);
      if (++place < extent) break;
      at -= extent * array.stride(axis);
      place = 0;
    }
  }
}

/// Whether a float mask may hold 0 and 1 only, and a 1: Python warns of it. A large one that begins
/// with many zeros and ones is left to Python, which looks faster.
inline bool may_be_of_zeros_and_ones(const strided_array& mask) {
  bool one = false, only = true;
  std::int64_t left = 4096;
  for_each_number(mask, mask.shape(), [&](double number) {
    one = one || number == 1;
    only = number == 0 || number == 1;
    return only && --left > 0;
  });
  return only && (one || left == 0);
}

/// Query, key and value that need no preparation, with the options of a call.
class plain_arrays : public call_arrays {
 public:
  plain_arrays(const plain_arrays&) = delete;  // its arrays refer to its numbers
  plain_arrays& operator=(const plain_arrays&) = delete;

  template <class Library>
  plain_arrays(const Library& library, py::handle query_, py::handle key_, py::handle value_,
               const plain_options& options)
      : heads_last_(options.heads_last()) {
    try {
      are_plain_ = read_matrices(library, query_, key_, value_, options) &&
                   read_mask(library, options.attn_mask()) && read_rows(library, options);
    } catch (const std::invalid_argument&) {  // shapes or intervals that do not fit
      are_plain_ = false;
    }
  }

  /// Whether all of them are plain.
  explicit operator bool() const { return are_plain_; }
  element_type type() const { return query.layout().type; }
  /// Shape of the output as the caller sees it.
  extents output_shape() const {
    extents shape = joined(rows(), {value_dim()});
    if (heads_last_ && shape.size() > 2)
      std::swap(shape[shape.size() - 3], shape[shape.size() - 2]);
    return shape;
  }
  /// An array of the caller, with the axes of the core, and back.
  strided_array laid_out(const strided_array& array) const {
    return heads_last_ ? heads_swapped(array) : array;
  }

 private:
  template <class Library>
  bool read_matrices(const Library& library, py::handle query_, py::handle key_, py::handle value_,
                     const plain_options& options) {
    const auto q = library.read(query_), k = library.read(key_);
    const auto v = value_.is_none() ? strided_array() : library.read(value_);
    if (!q || !k || !v || !fit(*q, *k, *v)) return false;
    query = laid_out(*q), key = laid_out(*k), value = laid_out(*v);
    if (query.extent(1) != key.extent(1)) return false;
    if (value && value.extent(2) != key.extent(2)) return false;
    if (query.layout().type == element_type::float64) compute = element_type::float64;
    leading = query.leading();
    if (key.leading() == leading && (!value || value.leading() == leading)) return true;
    leading =
        leading_shape({{"query", &query}, {"key", &key}, {"value", &value}}, options.enable_gqa());
    return is_moderate(value ? output_shape() : rows());
  }

  static bool fit(const strided_array& q, const strided_array& k, const strided_array& v) {
    const auto fits = [&](const strided_array& each) {
      return each.dimension() >= 2 && is_moderate(each.shape()) &&
             each.layout().type == q.layout().type;
    };
    return fits(q) && fits(k) && (!v || fits(v));
  }
  /// Whether an array has elements, and few enough that no result can be too large.
  static bool is_moderate(const extents& shape) {
    double entries = 1;
    for (const std::int64_t extent : shape) entries *= static_cast<double>(extent);
    return entries > 0 && entries < 0x1p40;
  }

  template <class Library>
  bool read_mask(const Library& library, py::handle given) {
    if (!given) return true;
    auto found = library.read_booleans(given);
    mask_type = found ? mask_kind::boolean : mask_kind::additive;
    if (!found) found = library.read(given);
    if (!found || !broadcasts(*found, joined(rows(), {n_keys()}))) return false;
    if (mask_type == mask_kind::additive && may_be_of_zeros_and_ones(*found)) return false;
    attn_mask = *found;
    return true;
  }

  template <class Library>
  bool read_rows(const Library& library, const plain_options& options) {
    form.softcap = options.softcap();
    if (options.hides_keys() || options.law()) read_intervals(options);
    scale_.numbers = {options.scale(query.extent(1))};
    if (options.scales() && !keep(library.read(options.scales(), 1), scale_)) return false;
    if (options.law()) read_law(*options.law());
    if (!are_finite(scale_)) return false;
    scale = {scale_, 1};
    return read_sink(library, options.sink());
  }

  void read_intervals(const plain_options& options) {
    const std::span batch(leading.begin(), leading.empty() ? leading.end() : leading.end() - 1);
    intervals_ = options.intervals(n_queries(), n_keys(), batch);
    if (intervals_.begin()) begin = {*intervals_.begin(), 1};
    if (intervals_.end()) end = {*intervals_.end(), 1};
  }

  void read_law(const scale_law& law) {
    if (!attn_mask)
      scale_ = law_scales(law, intervals_, nullptr, query.extent(1));
    else  // may count under the mask
      run_released(
          0, [&](const execution& how) { scale_ = scales_of_law(law, intervals_, *this, how); });
  }

  /// Reads the score of a sink: of all rows, of each head, or of each row.
  template <class Library>
  bool read_sink(const Library& library, const py::object& given) {
    if (!given || given.is_none()) return true;
    if (PyFloat_Check(given.ptr())) {
      sink_.numbers = {PyFloat_AS_DOUBLE(given.ptr())};
    } else {
      auto found = numpy_library().read(given, 1);
      if (!found) found = library.read(given, 1);
      if (found && found->dimension() == 1) {  // one number a head
        if (rows().size() == 1 && found->extent(1) > 1) return false;
        found = strided_array(found->place({}, {}), found->layout().type, found->item_size(),
                              {found->extent(1), 1}, {found->stride(1), 0}, 1);
      }
      if (!keep(found, sink_)) return false;
    }
    number = {sink_, 1};
    return are_finite(sink_);
  }

  /// Copies numbers that broadcast to (..., heads, n_queries); false for others.
  bool keep(const std::optional<strided_array>& given, row_array<double>& into) const {
    if (!given || !broadcasts(*given, rows())) return false;
    into.extents.assign(given->shape().begin(), given->shape().end());
    into.numbers.clear();
    for_each_number(*given, given->shape(), [&](double each) {
      into.numbers.push_back(each);
      return true;
    });
    return true;
  }
  static bool are_finite(const row_array<double>& rows) {
    return std::all_of(rows.numbers.begin(), rows.numbers.end(),
                       [](double x) { return std::isfinite(x); });
  }

  bool heads_last_, are_plain_ = false;
  key_intervals intervals_;
  row_array<double> scale_, sink_;
};

/// Whether the memory of an array (..., heads, n, dim) is that of (..., n, heads, dim), as after
/// the split of a model's channels into heads.
inline bool has_heads_inside(const strided_array& array) {
  return array.dimension() > 2 && array.extent(3) > 1 && array.extent(2) > 1 &&
         array.stride(3) < array.stride(2);
}

/// A new array (..., n, dim), in the core's form. A tensor has its heads where `like` has them: a
/// model joins them again without a copy.
class new_matrices : public strided_array {
 public:
  new_matrices() = default;  ///< absent: None

  template <class Library>
  new_matrices(const Library& library, const extents& shape, const strided_array& like) {
    const element_type type = like.layout().type;
    strides_ = row_major(shape);
    new_result made = [&] {
      if constexpr (std::is_same_v<Library, tensor_library>)
        if (has_heads_inside(like)) {
          strides_ = row_major_with_heads_inside(shape);
          return library.make_with_heads_inside(shape, type);
        }
      return library.make(shape, type);
    }();
    array_ = std::move(made.array);
    elements_ = made.data;
    static_cast<strided_array&>(*this) = {made.data, type, like.item_size(), shape, strides_, 2};
  }

  const extents& strides() const { return strides_; }

  py::object take() { return std::move(array_); }
  void fill_with_zeros() {
    const auto entries = static_cast<std::size_t>(count_entries(shape()));
    std::memset(elements_, 0, entries * static_cast<std::size_t>(item_size()));
  }

 private:
  py::object array_ = py::none();
  void* elements_ = nullptr;
  extents strides_;
};

}  // namespace attnscale::bindings
