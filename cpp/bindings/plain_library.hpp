// SPDX-License-Identifier: BSD-3-Clause
//
// Arrays of a plain call: NumPy's own, read and made like the tensors of tensors.hpp.
#pragma once

#include <optional>
#include <utility>

#include "tensors.hpp"

namespace attnscale::bindings {

/// Recognises NumPy's own arrays, in native byte order.
class numpy_library {
 public:
  static std::optional<numpy_library> of(py::handle) { return numpy_library(); }

  static bool is_array(py::handle object) {
    return Py_TYPE(object.ptr()) == py::detail::npy_api::get().PyArray_Type_;
  }

  /// An array of float64, float32 or float16, whose last `inner` axes are the core's.
  std::optional<strided_array> read(py::handle object, int inner = 2) const {
    if (!is_array(object)) return std::nullopt;
    const auto array = py::reinterpret_borrow<py::array>(object);
    const py::dtype dtype = array.dtype();
    if (!is_read_by_number(dtype) || !is_aligned(array)) return std::nullopt;
    return view(array, element_type_of(dtype), inner);
  }

  /// An array of signed 64-bit integers, none of whose axes are the core's.
  std::optional<strided_array> read_integers(py::handle object) const {
    if (!is_array(object)) return std::nullopt;
    const auto array = py::reinterpret_borrow<py::array>(object);
    const py::dtype dtype = array.dtype();
    if (dtype.kind() != 'i' || dtype.itemsize() != 8 || dtype.byteorder() != '=' ||
        !is_aligned(array))
      return std::nullopt;
    return view(array, element_type::float64, 0);
  }

  /// An array of booleans, whose last two axes are the core's.
  std::optional<strided_array> read_booleans(py::handle object) const {
    if (!is_array(object)) return std::nullopt;
    const auto array = py::reinterpret_borrow<py::array>(object);
    if (array.dtype().kind() != 'b') return std::nullopt;
    return view(array, element_type::float32, 2);
  }

  new_result make(const extents& shape, element_type type) const {
    if (type == element_type::float64) return made(py::array(py::dtype::of<double>(), shape));
    if (type == element_type::float32) return made(py::array(py::dtype::of<float>(), shape));
    return made(py::array(py::dtype("e"), shape));
  }
  new_result make_counts(const extents& shape) const {
    return made(py::array(py::dtype::of<std::int64_t>(), shape));
  }

 private:
  static bool is_read_by_number(const py::dtype& dtype) {
    const int number = dtype.num();
    return dtype.byteorder() == '=' &&
           (number == py::detail::npy_api::NPY_FLOAT_ ||
            number == py::detail::npy_api::NPY_DOUBLE_ || dtype.char_() == 'e');
  }
  static strided_array view(const py::array& array, element_type type, int inner) {
    const py::ssize_t item = array.itemsize();
    extents strides(array.strides(), array.strides() + array.ndim());
    for (auto& stride : strides) stride /= item;
    return {array.data(), type, item, extents(array.shape(), array.shape() + array.ndim()),
            strides,      inner};
  }
  static new_result made(py::array array) {
    void* const data = array.mutable_data();
    return {std::move(array), data};
  }
};

}  // namespace attnscale::bindings
