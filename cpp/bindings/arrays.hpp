// SPDX-License-Identifier: BSD-3-Clause
//
// The only place that knows NumPy: arrays of any strides become the core's pointers and strides,
// leading axes broadcast by pointer arithmetic, and the GIL is let go while the core computes.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attnscale/problem.hpp"

namespace attnscale::bindings {

namespace py = pybind11;

using extents = std::vector<std::int64_t>;

/// ml_dtypes registers bfloat16 at run time: it has a name, but no type number to compare with.
inline element_type element_type_of(const py::dtype& type) {
  if (type.num() == py::detail::npy_api::NPY_FLOAT_) return element_type::float32;
  if (type.num() == py::detail::npy_api::NPY_DOUBLE_) return element_type::float64;
  if (type.char_() == 'e') return element_type::float16;
  if (type.attr("name").cast<std::string>() == "bfloat16") return element_type::bfloat16;
  throw std::invalid_argument("the core does not read arrays of this type");
}

/// True if every element lies at a multiple of the item size, as loads of whole elements need.
inline bool is_aligned(const py::array& array) {
  const py::ssize_t item = array.itemsize();
  if (reinterpret_cast<std::uintptr_t>(array.data()) % static_cast<std::size_t>(item) != 0)
    return false;
  for (py::ssize_t axis = 0; axis < array.ndim(); ++axis) {
    if (array.shape(axis) > 1 && array.strides(axis) % item != 0) return false;
  }
  return true;
}

/// An array whose last `inner` axes are the core's and whose other axes lead (..., heads). An axis
/// of extent 1 has stride 0, so that it broadcasts. Keeps the array (an aligned copy) alive.
class operand {
 public:
  operand() = default;  ///< absent: null pointers, no axes

  operand(py::array array, int inner) : array_(std::move(array)), inner_(inner) {
    if (!is_aligned(array_)) array_ = py::array(array_.attr("copy")());
    data_ = static_cast<const char*>(array_.data());
  }

  operand(const py::object& array_or_none, int inner) {
    if (!array_or_none.is_none())
      *this = operand(py::reinterpret_borrow<py::array>(array_or_none), inner);
  }

  explicit operator bool() const { return data_ != nullptr; }

  int n_leading() const { return data_ == nullptr ? 0 : static_cast<int>(array_.ndim()) - inner_; }

  /// Extent of an axis counted from the last one, which is 1. An absent axis has extent 1.
  std::int64_t extent(int from_last) const {
    return data_ == nullptr || from_last > array_.ndim() ? 1
                                                         : array_.shape(array_.ndim() - from_last);
  }

  /// Stride of that axis in elements.
  std::ptrdiff_t stride(int from_last) const {
    if (extent(from_last) <= 1) return 0;
    return array_.strides(array_.ndim() - from_last) / array_.itemsize();
  }

  std::int64_t leading_extent(int from_last) const { return extent(inner_ + from_last); }

  matrix_layout layout() const {
    if (data_ == nullptr) return {};
    return {element_type_of(array_.dtype()), stride(2), stride(1)};
  }

  /// Where the matrix of a leading index begins. An axis that is shorter than the call's `shape`
  /// (heads of key and value under grouped queries) serves consecutive entries.
  const void* at(const extents& index, const extents& shape) const {
    if (data_ == nullptr) return nullptr;
    std::ptrdiff_t elements = 0;
    const int n = static_cast<int>(shape.size());
    for (int axis = 0; axis < n; ++axis) {
      const std::int64_t entries = leading_extent(n - axis);
      if (entries <= 1) continue;
      const auto a = static_cast<std::size_t>(axis);
      elements += index[a] / (shape[a] / entries) * stride(inner_ + n - axis);
    }
    return data_ + elements * array_.itemsize();
  }

 private:
  py::array array_;
  const char* data_ = nullptr;
  int inner_ = 0;
};

/// The leading shape of a call. Axes are equal or 1, except that the query may have more heads.
inline extents leading_shape(std::initializer_list<const operand*> operands) {
  int n = 0;
  for (const operand* each : operands) n = std::max(n, each->n_leading());
  extents shape(static_cast<std::size_t>(n), 1);
  for (int axis = 0; axis < n; ++axis) {
    for (const operand* each : operands) {
      const std::int64_t entries = each->leading_extent(n - axis);
      std::int64_t& here = shape[static_cast<std::size_t>(axis)];
      if (here == 1) here = entries;
    }
  }
  return shape;
}

/// Number of entries; std::bad_alloc (MemoryError) if it does not fit.
inline std::int64_t count(const extents& shape) {
  std::int64_t total = 1;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (const std::int64_t extent : shape) {
    if (total > PTRDIFF_MAX / 64 / extent) throw std::bad_alloc();
    total *= extent;
  }
  return total;
}

/// Calls visit(index) for every leading index, in C order.
template <class Visit>
void for_each_index(const extents& shape, Visit visit) {
  extents index(shape.size(), 0);
  for (std::int64_t left = count(shape); left > 0; --left) {
    visit(index);
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      if (++index[axis] < shape[axis]) break;
      index[axis] = 0;
    }
  }
}

/// A new C-contiguous array; its pointer goes to the core.
inline py::array new_array(const extents& leading, std::initializer_list<std::int64_t> inner,
                           element_type type) {
  extents shape = leading;
  shape.insert(shape.end(), inner);
  count(shape);
  const auto number =
      type == element_type::float64 ? py::dtype::of<double>() : py::dtype::of<float>();
  return py::array(number, shape);
}

inline py::array_t<std::int64_t> new_counts(const extents& leading, std::int64_t n_queries) {
  extents shape = leading;
  shape.push_back(n_queries);
  count(shape);
  return py::array_t<std::int64_t>(shape);
}

/// Lets other Python threads run, and answers Ctrl-C: the core asks `interrupted` now and then,
/// on the thread that made this object.
class released_gil {
 public:
  released_gil() : state_(PyEval_SaveThread()) {}
  ~released_gil() { PyEval_RestoreThread(state_); }
  released_gil(const released_gil&) = delete;
  released_gil& operator=(const released_gil&) = delete;

  execution with_threads(int num_threads) { return {num_threads, interrupted, this}; }

 private:
  static bool interrupted(void* self) {
    PyThreadState*& state = static_cast<released_gil*>(self)->state_;
    PyEval_RestoreThread(state);
    const bool raised = PyErr_CheckSignals() != 0;
    state = PyEval_SaveThread();
    return raised;
  }

  PyThreadState* state_;
};

/// Runs `work(execution)` without the GIL; the Python error that a signal handler raised
/// (KeyboardInterrupt) surfaces as itself.
template <class Work>
void run_released(int num_threads, Work work) {
  try {
    released_gil released;
    work(released.with_threads(num_threads));
  } catch (const attnscale::interrupted&) {
    throw py::error_already_set();
  }
}

}  // namespace attnscale::bindings
