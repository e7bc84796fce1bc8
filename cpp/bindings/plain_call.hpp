// SPDX-License-Identifier: BSD-3-Clause
//
// Plain calls of attention: no options but a scale and is_causal, on arrays of one type whose
// leading axes are the same. They are read here, because Python takes longer to read a call than
// the core to compute a short one. Whatever is not plain is answered with None; Python reads it,
// and has the messages for what is wrong.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "call.hpp"
#include "tensors.hpp"

namespace attnscale::bindings {

/// NumPy's own arrays, in the machine's byte order.
class numpy_library {
 public:
  static std::optional<numpy_library> of(py::handle) { return numpy_library(); }

  std::optional<strided_array> read(py::handle object) const {
    if (Py_TYPE(object.ptr()) != py::detail::npy_api::get().PyArray_Type_) return std::nullopt;
    const auto array = py::reinterpret_borrow<py::array>(object);
    const py::dtype dtype = array.dtype();
    if (!is_read_by_number(dtype) || !is_aligned(array)) return std::nullopt;
    const py::ssize_t item = array.itemsize();
    extents strides(array.strides(), array.strides() + array.ndim());
    for (auto& stride : strides) stride /= item;
    return strided_array(array.data(), element_type_of(dtype), item,
                         extents(array.shape(), array.shape() + array.ndim()), strides, 2);
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
  static new_result made(py::array array) {
    void* const data = array.mutable_data();
    return {std::move(array), data};
  }
};

/// The names of options, interned as those of keywords in a call of Python are.
class option_names {
 public:
  static const option_names& get() {
    static const option_names names;
    return names;
  }
  /// Whether `name` is that of an option that is not given where it is None.
  bool is_optional(py::handle name) const {
    return std::find(optional_.begin(), optional_.end(), name.ptr()) != optional_.end();
  }

  PyObject* const scale = interned("scale");
  PyObject* const is_causal = interned("is_causal");
  PyObject* const enable_gqa = interned("enable_gqa");
  PyObject* const normalizer = interned("normalizer");
  PyObject* const layout = interned("layout");

 private:
  static PyObject* interned(const char* name) { return PyUnicode_InternFromString(name); }

  std::array<PyObject*, 13> optional_{
      interned("causal"),        interned("attn_mask"),    interned("window"),
      interned("key_lengths"),   interned("document_ids"), interned("distance_scale"),
      interned("distance_bias"), interned("softcap"),      interned("qk_norm"),
      interned("dims"),          interned("out"),          interned("num_threads"),
      interned("backend")};
};

inline bool is_text(py::handle object, const char* text) {
  return PyUnicode_Check(object.ptr()) && PyUnicode_CompareWithASCIIString(object.ptr(), text) == 0;
}

/// The options of a plain call.
class plain_options {
 public:
  /// As the keywords of a call of Python; none where one of them is not plain, or not known.
  static std::optional<plain_options> read(const py::dict& options) {
    plain_options found;
    for (const auto& [name, value] : options)
      if (!found.read(name, value)) return std::nullopt;
    return found;
  }

  double scale(std::int64_t head_dim) const {
    return scale_.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
  }
  bool is_causal() const { return is_causal_; }

 private:
  /// Whether the option is plain.
  bool read(py::handle name, py::handle value) {
    const option_names& names = option_names::get();
    if (value.is_none()) return name.ptr() == names.scale || names.is_optional(name);
    if (name.ptr() == names.scale) {
      if (!PyFloat_Check(value.ptr())) return false;
      scale_ = PyFloat_AS_DOUBLE(value.ptr());
      return std::isfinite(*scale_);
    }
    if (name.ptr() == names.is_causal) {
      is_causal_ = value.ptr() == Py_True;
      return PyBool_Check(value.ptr()) != 0;
    }
    return (name.ptr() == names.enable_gqa && value.ptr() == Py_False) ||
           (name.ptr() == names.normalizer && is_text(value, "softmax")) ||
           (name.ptr() == names.layout && is_text(value, "bhsd"));
  }

  std::optional<double> scale_{};  // none: 1/sqrt(head_dim)
  bool is_causal_ = false;
};

/// Query, key and value that need no preparation, with the options of a call.
class plain_arrays : public call_arrays {
 public:
  plain_arrays(const plain_arrays&) = delete;  // its arrays refer to its numbers
  plain_arrays& operator=(const plain_arrays&) = delete;

  template <class Library>
  plain_arrays(const Library& library, py::handle query_, py::handle key_, py::handle value_,
               const plain_options& options) {
    const auto q = library.read(query_), k = library.read(key_);
    const auto v = value_.is_none() ? strided_array() : library.read(value_);
    if (!q || !k || !v) return;
    query = *q, key = *k, value = *v;
    are_plain_ = fit();
    if (!are_plain_) return;
    if (query.layout().type == element_type::float64) compute = element_type::float64;
    leading = query.leading();
    number_ = options.scale(query.extent(1));
    scale = {&number_, element_type::float64, sizeof number_, {}, {}, 1};
    if (!options.is_causal()) return;
    end_.assign(static_cast<std::size_t>(n_queries()), n_keys());
    std::iota(end_.begin(), end_.begin() + std::min(n_queries(), n_keys()), 1);
    end = {end_.data(), element_type::float64, sizeof(std::int64_t), {n_queries()}, {1}, 1};
  }

  /// False if one of them is not plain.
  explicit operator bool() const { return are_plain_; }
  element_type type() const { return query.layout().type; }
  extents output_shape() const { return joined(rows(), {value_dim()}); }

 private:
  bool fit() const {
    if (query.dimension() < 2 || !have_entries(query) || !goes_with(key) ||
        query.extent(1) != key.extent(1))
      return false;
    return !value || (goes_with(value) && value.extent(2) == key.extent(2));
  }
  /// Some elements, and not so many that a result of the call could be too large.
  static bool have_entries(const strided_array& array) {
    double entries = 1;
    for (const std::int64_t extent : array.shape()) entries *= static_cast<double>(extent);
    return entries > 0 && entries < 0x1p40;
  }
  bool goes_with(const strided_array& other) const {
    return other.dimension() == query.dimension() && have_entries(other) &&
           other.layout().type == query.layout().type &&
           std::equal(query.shape().begin(), query.shape().end() - 2, other.shape().begin());
  }

  bool are_plain_ = false;
  double number_ = 0;              // the scale
  std::vector<std::int64_t> end_;  // behind which key each query of a causal call ends
};

/// A new array (..., n, dim), as the core sees it.
class new_matrices : public strided_array {
 public:
  new_matrices() = default;  ///< absent: None

  template <class Library>
  new_matrices(const Library& library, const extents& shape, element_type type,
               std::ptrdiff_t item_size)
      : new_matrices(library.make(shape, type), shape, type, item_size) {}

  py::object take() { return std::move(array_); }
  void fill_with_zeros() {
    const auto entries = static_cast<std::size_t>(count_entries(shape()));
    std::memset(elements_, 0, entries * static_cast<std::size_t>(item_size()));
  }

 private:
  new_matrices(new_result made, const extents& shape, element_type type, std::ptrdiff_t item_size)
      : strided_array(made.data, type, item_size, shape, row_major(shape), 2),
        array_(std::move(made.array)),
        elements_(made.data) {}

  py::object array_ = py::none();
  void* elements_ = nullptr;
};

}  // namespace attnscale::bindings
