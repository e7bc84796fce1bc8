// SPDX-License-Identifier: BSD-3-Clause
//
// Plain calls of attention: arrays of one type with equal leading axes, a scale that is a number or
// a law of a count, and options that give intervals of keys. They are read here, because reading a
// call in Python takes longer than computing a short one. For any other call the result is None;
// Python then reads it, and has the messages for errors.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attnscale/detail/intervals.hpp"
#include "attnscale/scale_law.hpp"
#include "call.hpp"
#include "tensors.hpp"

namespace attnscale::bindings {

/// Recognises NumPy's own arrays, in native byte order.
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

/// Names of options, interned like the keywords of a Python call.
class option_names {
 public:
  static const option_names& get() {
    static const option_names names;
    return names;
  }
  /// Whether `name` is an option whose None means absent.
  bool is_optional(py::handle name) const {
    return std::find(optional_.begin(), optional_.end(), name.ptr()) != optional_.end();
  }

  PyObject* const scale = interned("scale");
  PyObject* const in_core = interned("_in_core");
  PyObject* const is_causal = interned("is_causal");
  PyObject* const causal = interned("causal");
  PyObject* const window = interned("window");
  PyObject* const key_lengths = interned("key_lengths");
  PyObject* const document_ids = interned("document_ids");
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

/// A Python int between -2^60 and 2^60.
inline std::optional<std::int64_t> small_integer(py::handle object) {
  if (!PyLong_CheckExact(object.ptr())) return std::nullopt;
  int overflow = 0;
  const std::int64_t number = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  constexpr std::int64_t most = std::int64_t{1} << 60;
  return overflow || number < -most || number > most ? std::nullopt : std::optional(number);
}

/// Integers of an option: a number, or an array of signed 64-bit integers, from NumPy or another
/// library on the CPU.
class plain_integers {
 public:
  /// Whether the integers are plain. The array has to live until the call ends.
  bool read(py::handle object) {
    given_ = true;
    if (const auto number = small_integer(object)) {
      number_ = *number;
      return true;
    }
    if (Py_TYPE(object.ptr()) == py::detail::npy_api::get().PyArray_Type_)
      return read_array(object);
    const auto library = tensor_library::of(object);
    const auto found = library ? library->read_integers(object) : std::nullopt;
    if (found) array_ = *found;
    return found.has_value();
  }

  /// A view of the integers, which have to outlive it.
  std::optional<integer_array> view() const {
    if (!given_) return std::nullopt;
    return array_ ? array_.integers() : integer_array{&number_};
  }

 private:
  bool read_array(py::handle object) {
    const auto array = py::reinterpret_borrow<py::array>(object);
    const py::dtype dtype = array.dtype();
    if (dtype.kind() != 'i' || dtype.itemsize() != 8 || dtype.byteorder() != '=' ||
        !is_aligned(array))
      return false;
    array_ = numpy_array(array, 0, elements::known);
    return true;
  }

  bool given_ = false;
  std::int64_t number_ = 0;
  strided_array array_;
};

/// Options of a plain call.
class plain_options {
 public:
  /// Reads keywords of a Python call; nullopt if one of them is not plain, or unknown.
  static std::optional<plain_options> read(const py::dict& options) {
    std::optional<plain_options> found(std::in_place);
    for (const auto& [name, value] : options)
      if (!found->read(name, value)) return std::nullopt;
    if (found->is_causal_ && !found->align(causal_alignment::top_left)) return std::nullopt;
    return found;
  }

  double scale(std::int64_t head_dim) const {
    return scale_.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
  }
  const std::optional<scale_law>& law() const { return law_; }

  bool hides_keys() const { return hides_keys_; }
  key_intervals intervals(std::int64_t n_queries, std::int64_t n_keys,
                          std::span<const std::int64_t> batch) const {
    return key_intervals(
        {n_queries, n_keys, batch, causal_, offset_, window_, lengths_.view(), documents_.view()});
  }

 private:
  /// Whether the option is plain.
  bool read(py::handle name, py::handle value) {
    const option_names& names = option_names::get();
    if (value.is_none()) return name.ptr() == names.scale || names.is_optional(name);
    if (name.ptr() == names.scale) return read_scale(value);
    if (name.ptr() == names.is_causal) {
      is_causal_ = value.ptr() == Py_True;
      return PyBool_Check(value.ptr()) != 0;
    }
    if (name.ptr() == names.causal) return read_causal(value);
    if (name.ptr() == names.window) return read_window(value);
    if (name.ptr() == names.key_lengths) return hides_keys_ = lengths_.read(value);
    if (name.ptr() == names.document_ids) return hides_keys_ = documents_.read(value);
    return (name.ptr() == names.enable_gqa && value.ptr() == Py_False) ||
           (name.ptr() == names.normalizer && is_text(value, "softmax")) ||
           (name.ptr() == names.layout && is_text(value, "bhsd"));
  }

  bool read_scale(py::handle value) {
    if (PyFloat_Check(value.ptr())) {
      scale_ = PyFloat_AS_DOUBLE(value.ptr());
      return std::isfinite(*scale_);
    }
    if (PyUnicode_Check(value.ptr())) return read_law(value);
    // A law object has the core's spelling of itself.
    const auto spelling = py::reinterpret_steal<py::object>(
        PyObject_GetAttr(value.ptr(), option_names::get().in_core));
    if (!spelling) PyErr_Clear();
    return spelling && PyUnicode_Check(spelling.ptr()) && read_law(spelling);
  }

  /// Reads laws of the core with one scale per row, known before the scores.
  bool read_law(py::handle text) {
    Py_ssize_t length = 0;
    const char* const letters = PyUnicode_AsUTF8AndSize(text.ptr(), &length);
    if (!letters) throw py::error_already_set();
    law_ = law_of({letters, static_cast<std::size_t>(length)});
    return law_ && law_->counts() && !law_->acts_on_some_channels();
  }
  /// The law, or nullopt if the core does not know it. The calls of a model share one law, whose
  /// text is parsed once.
  static std::optional<scale_law> law_of(std::string_view text) {
    thread_local std::string last_text;
    thread_local std::optional<scale_law> last;
    if (last && text == last_text) return last;
    try {
      last = scale_law::parse(text);
    } catch (const std::invalid_argument&) {
      return std::nullopt;
    }
    last_text = text;
    return last;
  }

  bool read_causal(py::handle value) {
    if (is_text(value, "top_left")) return align(causal_alignment::top_left);
    if (is_text(value, "bottom_right")) return align(causal_alignment::bottom_right);
    const auto offset = small_integer(value);
    offset_ = offset.value_or(0);
    return offset && align(causal_alignment::offset);
  }
  /// Whether no other alignment was given.
  bool align(causal_alignment causal) {
    hides_keys_ = true;
    return (causal_ == causal_alignment::none ? causal_ = causal : causal_) == causal;
  }

  bool read_window(py::handle value) {
    if (!PyTuple_CheckExact(value.ptr()) || PyTuple_GET_SIZE(value.ptr()) != 2) return false;
    hides_keys_ = true;
    std::int64_t* const sides[] = {&window_.left, &window_.right};
    for (py::ssize_t side = 0; side < 2; ++side) {
      const py::handle extent = PyTuple_GET_ITEM(value.ptr(), side);
      if (extent.is_none()) continue;
      const auto keys = small_integer(extent);
      if (!keys || *keys < 0) return false;
      *sides[side] = *keys;
    }
    return true;
  }

  std::optional<double> scale_{};  // absent: 1/sqrt(head_dim)
  std::optional<scale_law> law_{};
  bool is_causal_ = false, hides_keys_ = false;
  causal_alignment causal_ = causal_alignment::none;
  std::int64_t offset_ = 0;
  key_window window_{};
  plain_integers lengths_, documents_;
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
    scale_.numbers = {options.scale(query.extent(1))};
    try {
      if (options.hides_keys() || options.law()) read_rows(options);
    } catch (const std::invalid_argument&) {
      are_plain_ = false;
    }
    scale = {scale_, 1};
  }

  /// Whether all of them are plain.
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
  /// Whether an array has elements, and few enough that no result can be too large.
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

  void read_rows(const plain_options& options) {
    const std::span batch(leading.begin(), leading.empty() ? leading.end() : leading.end() - 1);
    intervals_ = options.intervals(n_queries(), n_keys(), batch);
    if (intervals_.begin()) begin = {*intervals_.begin(), 1};
    if (intervals_.end()) end = {*intervals_.end(), 1};
    if (!options.law()) return;
    scale_ = law_scales(*options.law(), intervals_, nullptr, query.extent(1));
    const auto& numbers = scale_.numbers;
    are_plain_ =
        std::all_of(numbers.begin(), numbers.end(), [](double x) { return std::isfinite(x); });
  }

  bool are_plain_ = false;
  key_intervals intervals_;
  row_array<double> scale_;
};

/// A new array (..., n, dim), in the core's form.
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
