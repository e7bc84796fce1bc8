// SPDX-License-Identifier: BSD-3-Clause
//
// Inputs and results of the backward pass of a plain call.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "attnscale/float16.hpp"
#include "attnscale/statistic.hpp"
#include "plain_call.hpp"

namespace attnscale::bindings {

/// Numbers of the rows of a call, contiguous and of its compute type, with the memory of copies.
class row_numbers {
 public:
  explicit row_numbers(const plain_arrays& given) : shape_(given.rows()), type_(given.compute) {}

  /// Points at the rows of the named statistics in `places`; rows that are None are absent. Names
  /// without rows are ignored. False if one of the rows is not plain.
  template <class Library>
  bool read(const Library& library, const py::tuple& names, const py::sequence& rows,
            bool may_broadcast, row_outputs& places) {
    const std::size_t n = std::min(names.size(), rows.size());
    for (std::size_t i = 0; i < n; ++i) {
      const py::object each = rows[i];
      const statistic_traits* const of = each.is_none() ? nullptr : used(names[i]);
      if (!of) continue;
      void*& place = places[of->which];
      place = of->is_count ? counts(library, each) : numbers(library, each, may_broadcast);
      if (!place) return false;
    }
    return true;
  }

 private:
  /// The statistic of this name that a backward pass may use; null for other names.
  static const statistic_traits* used(py::handle name) {
    for (const statistic_traits& each : statistic_table)
      if ((each.has_gradient || each.which == statistic::argmax) && is_text(name, each.name.data()))
        return &each;
    return nullptr;
  }

  template <class Library>
  void* counts(const Library& library, py::handle rows) const {
    const auto found = library.read_integers(rows);
    const bool fits = found && found->shape() == shape_ && is_contiguous(*found);
    return fits ? found->place({}, {}) : nullptr;
  }

  template <class Library>
  void* numbers(const Library& library, py::handle rows, bool may_broadcast) {
    const auto one = finite_number(rows);
    const auto found = one ? strided_array(&*one, element_type::float64, sizeof(double), {}, {}, 1)
                           : library.read(rows, 1).value_or(strided_array());
    const bool is_whole = found.shape() == shape_;
    if (!found || !(is_whole || (may_broadcast && broadcasts(found, shape_)))) return nullptr;
    if (is_whole && found.layout().type == type_ && is_contiguous(found))
      return found.place({}, {});
    return type_ == element_type::float64 ? copied<double>(found) : copied<float>(found);
  }

  static bool is_contiguous(const strided_array& array) {
    std::int64_t step = 1;
    for (int axis = 1; axis <= array.dimension(); step *= array.extent(axis++))
      if (array.extent(axis) > 1 && array.stride(axis) != step) return false;
    return true;
  }

  template <class T>
  void* copied(const strided_array& rows) {
    const auto entries = static_cast<std::size_t>(count_entries(shape_));
    auto* to = reinterpret_cast<T*>(copies_.emplace_back(entries * sizeof(T)).data());
    void* const start = to;
    for_each_number(rows, shape_, [&](double number) {
      *to++ = static_cast<T>(number);
      return true;
    });
    return start;
  }

  extents shape_;
  element_type type_;
  std::vector<std::vector<char>> copies_;
};

/// Inputs of a plain backward pass besides query, key and value.
struct backward_arrays {
  strided_array grad_output{}, output{};                    ///< absent: not in the loss; not saved
  bool of_scale = false, of_mask = false, of_sink = false;  ///< gradients that are wanted

  /// Whether the arrays are plain, and fit the call.
  template <class Library>
  bool read(const Library& library, const plain_arrays& given, py::handle grad, py::handle saved) {
    if (grad.is_none()) return true;
    if (!given.value || !read_output(library, grad, given, grad_output)) return false;
    return saved.is_none() || read_output(library, saved, given, output);
  }

 private:
  template <class Library>
  static bool read_output(const Library& library, py::handle object, const plain_arrays& given,
                          strided_array& into) {
    const auto found = library.read(object);
    if (!found || found->shape() != given.output_shape()) return false;
    into = given.laid_out(*found);
    return true;
  }
};

/// The gradient of an array, as the caller sees it: summed in the compute type, rounded to the
/// array's.
class new_gradient {
 public:
  new_gradient() = default;  ///< absent: None

  template <class Library>
  new_gradient(const Library& library, const strided_array& like, element_type compute)
      : made_(library, like.shape(), like), sums_(made_) {
    if (like.layout().type == compute) {
      made_.fill_with_zeros();
      return;
    }
    const std::ptrdiff_t item = compute == element_type::float64 ? 8 : 4;
    memory_.resize(static_cast<std::size_t>(count_entries(like.shape()) * item));
    sums_ = {memory_.data(), compute, item, like.shape(), made_.strides(), 2};
  }

  /// Whether the gradient of such an array is one: large arrays that are to be rounded are left to
  /// Python, which has vectors for it.
  static bool serves(const strided_array& like, element_type compute) {
    const element_type type = like.layout().type;
    if (type == compute) return true;
    return !(is_half(type) && compute == element_type::float64) && is_small(like);
  }
  /// Whether it costs little to fill such an array with zeros on one thread.
  static bool is_small(const strided_array& like) {
    return count_entries(like.shape()) <= std::int64_t{1} << 16;
  }

  const strided_array& sums() const { return sums_; }
  py::object take() {
    if (!memory_.empty()) round();
    return made_.take();
  }

 private:
  static bool is_half(element_type type) {
    return type == element_type::float16 || type == element_type::bfloat16;
  }

  void round() {
    void* const to = made_.place({}, {});
    const std::int64_t entries = count_entries(sums_.shape());
    for (std::int64_t i = 0; i < entries; ++i) {
      const double number = detail::number_at(memory_.data(), sums_.layout().type, i);
      const auto narrow = static_cast<float>(number);
      switch (made_.layout().type) {
        case element_type::float64:
          static_cast<double*>(to)[i] = number;
          break;
        case element_type::float32:
          static_cast<float*>(to)[i] = narrow;
          break;
        case element_type::float16:
          static_cast<float16*>(to)[i] = float16(narrow);
          break;
        case element_type::bfloat16:
          static_cast<bfloat16*>(to)[i] = bfloat16(narrow);
          break;
      }
    }
  }

  new_matrices made_;
  strided_array sums_;
  std::vector<char> memory_;
};

/// Whether the gradients of query, key and value are those of new_gradient.
inline bool serves_gradients(const plain_arrays& given) {
  return new_gradient::serves(given.query, given.compute) &&
         new_gradient::serves(given.key, given.compute) &&
         (!given.value || new_gradient::serves(given.value, given.compute));
}

/// A number for each row, in double; None if it is not wanted.
class new_row_numbers {
 public:
  template <class Library>
  new_row_numbers(const Library& library, const extents& rows, bool wanted) {
    if (!wanted) return;
    made_ = library.make(rows, element_type::float64);
    numbers_ = {static_cast<double*>(made_.data), static_cast<std::size_t>(count_entries(rows))};
    std::fill(numbers_.begin(), numbers_.end(), 0.0);
  }

  double* data() { return numbers_.data(); }
  bool are_finite() const {
    return std::all_of(numbers_.begin(), numbers_.end(), [](double x) { return std::isfinite(x); });
  }
  py::object take() { return std::move(made_.array); }

 private:
  new_result made_{py::none(), nullptr};
  std::span<double> numbers_;
};

}  // namespace attnscale::bindings
