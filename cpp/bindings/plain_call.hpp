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

using detail::joined;
using detail::strided_array;

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

/// What the heads of a plain call share; it has to live as long as the problem.
class shared_rows {
 public:
  shared_rows(const plain_options& options, attention_problem& problem)
      : scale_(options.scale(problem.head_dim)) {
    if (!options.is_causal()) return;
    end_.assign(static_cast<std::size_t>(problem.n_queries), problem.n_keys);
    std::iota(end_.begin(), end_.begin() + std::min(problem.n_queries, problem.n_keys), 1);
    problem.end_row = 1;
  }
  void describe(attention_head& head) const {
    head.scale = &scale_;
    if (!end_.empty()) head.end = end_.data();
  }

 private:
  double scale_;
  std::vector<std::int64_t> end_;  // behind which key each query of a causal call ends
};

/// Query, key and value that need no preparation.
struct plain_arrays {
  strided_array query, key, value;

  /// None if one of them is not plain.
  template <class Library>
  static std::optional<plain_arrays> read(const Library& library, py::handle query, py::handle key,
                                          py::handle value) {
    const auto q = library.read(query), k = library.read(key);
    const auto v = value.is_none() ? strided_array() : library.read(value);
    if (!q || !k || !v) return std::nullopt;
    plain_arrays found{*q, *k, *v};
    return found.fit() ? std::optional(std::move(found)) : std::nullopt;
  }

  extents leading() const { return {query.shape().begin(), query.shape().end() - 2}; }
  extents rows() const { return joined(leading(), {query.extent(2)}); }
  extents output() const { return joined(leading(), {query.extent(2), value.extent(1)}); }

  void describe(attention_problem& problem) const {
    const element_type type = query.layout().type;
    problem.compute = type == element_type::float64 ? element_type::float64 : element_type::float32;
    problem.query = query.layout();
    problem.key = key.layout();
    problem.value = value.layout();
    problem.n_queries = query.extent(2);
    problem.n_keys = key.extent(2);
    problem.head_dim = query.extent(1);
    problem.value_dim = value ? value.extent(1) : 0;
  }

  attention_head head(const extents& index, const extents& shape) const {
    attention_head head;
    head.query = query.at(index, shape);
    head.key = key.at(index, shape);
    head.value = value.at(index, shape);
    return head;
  }

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
};

/// A new array (..., n, dim), as the core sees it.
class new_matrices : public strided_array {
 public:
  new_matrices() = default;  ///< absent: None

  template <class Library>
  new_matrices(const Library& library, const extents& shape, element_type type,
               std::ptrdiff_t item_size)
      : new_matrices(library.make(shape, type), shape, type, item_size) {}

  void* place(const extents& index, const extents& shape) const {
    return const_cast<void*>(at(index, shape));
  }
  py::object take() { return std::move(array_); }
  void fill_with_zeros() {
    const auto entries = static_cast<std::size_t>(count_entries(shape()));
    std::memset(elements_, 0, entries * static_cast<std::size_t>(item_size()));
  }

 private:
  new_matrices(new_result made, const extents& shape, element_type type, std::ptrdiff_t item_size)
      : strided_array(made.data, type, item_size, shape, detail::row_major(shape), 2),
        array_(std::move(made.array)),
        elements_(made.data) {}

  py::object array_ = py::none();
  void* elements_ = nullptr;
};

}  // namespace attnscale::bindings
