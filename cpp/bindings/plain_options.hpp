// SPDX-License-Identifier: BSD-3-Clause
//
// Options of a plain call, from the keywords of a Python call. An option that is not understood
// here makes the call one that Python reads, which has the messages for errors.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "attnscale/detail/intervals.hpp"
#include "attnscale/scale_law.hpp"
#include "plain_library.hpp"

namespace attnscale::bindings {

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
  PyObject* const attn_mask = interned("attn_mask");
  PyObject* const window = interned("window");
  PyObject* const key_lengths = interned("key_lengths");
  PyObject* const document_ids = interned("document_ids");
  PyObject* const enable_gqa = interned("enable_gqa");
  PyObject* const softcap = interned("softcap");
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

/// A finite Python float, or an int that a double holds.
inline std::optional<double> finite_number(py::handle object) {
  if (PyFloat_Check(object.ptr())) {
    const double number = PyFloat_AS_DOUBLE(object.ptr());
    return std::isfinite(number) ? std::optional(number) : std::nullopt;
  }
  const auto whole = small_integer(object);
  constexpr std::int64_t most = std::int64_t{1} << 53;
  if (!whole || *whole < -most || *whole > most) return std::nullopt;
  return static_cast<double>(*whole);
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
    if (numpy_library::is_array(object)) return keep(numpy_library().read_integers(object));
    const auto library = tensor_library::of(object);
    return library && keep(library->read_integers(object));
  }

  /// A view of the integers, which have to outlive it.
  std::optional<integer_array> view() const {
    if (!given_) return std::nullopt;
    return array_ ? array_.integers() : integer_array{&number_};
  }

 private:
  bool keep(const std::optional<strided_array>& found) {
    if (found) array_ = *found;
    return found.has_value();
  }

  bool given_ = false;
  std::int64_t number_ = 0;
  strided_array array_;
};

/// Options of a plain call. Objects that are arrays are read later, by the library of the query.
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
  py::handle scales() const { return scales_; }        ///< an array; null without one
  py::handle attn_mask() const { return attn_mask_; }  ///< null without one
  py::object sink() const { return sink_; }            ///< a number or an array; null without one
  double softcap() const { return softcap_; }          ///< 0: none
  bool enable_gqa() const { return enable_gqa_; }
  bool heads_last() const { return heads_last_; }  ///< arrays are (..., n, heads, dim)

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
    if (name.ptr() == names.is_causal) return read_flag(value, is_causal_);
    if (name.ptr() == names.causal) return read_causal(value);
    if (name.ptr() == names.attn_mask) return attn_mask_ = value, true;
    if (name.ptr() == names.window) return read_window(value);
    if (name.ptr() == names.key_lengths) return hides_keys_ = lengths_.read(value);
    if (name.ptr() == names.document_ids) return hides_keys_ = documents_.read(value);
    if (name.ptr() == names.enable_gqa) return read_flag(value, enable_gqa_);
    if (name.ptr() == names.softcap) return read_softcap(value);
    if (name.ptr() == names.normalizer) return read_normalizer(value);
    if (name.ptr() != names.layout) return false;
    heads_last_ = is_text(value, "bshd");
    return heads_last_ || is_text(value, "bhsd");
  }

  static bool read_flag(py::handle value, bool& flag) {
    flag = value.ptr() == Py_True;
    return PyBool_Check(value.ptr()) != 0;
  }

  bool read_scale(py::handle value) {
    if (const auto number = finite_number(value)) return scale_ = number, true;
    if (PyUnicode_Check(value.ptr())) return read_law(value);
    if (PyFloat_Check(value.ptr())) return false;
    if (numpy_library::is_array(value) || tensor_library::of(value)) return scales_ = value, true;
    // A law object has the core's spelling of itself.
    const auto spelling = in_core(value);
    return spelling && PyUnicode_Check(spelling.ptr()) && read_law(spelling);
  }
  /// The core's form of a law or a normalizer; null for anything else.
  static py::object in_core(py::handle value) {
    auto found = py::reinterpret_steal<py::object>(
        PyObject_GetAttr(value.ptr(), option_names::get().in_core));
    if (!found) PyErr_Clear();
    return found;
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

  bool read_softcap(py::handle value) {
    softcap_ = finite_number(value).value_or(0);
    return softcap_ >= 1e-37 && softcap_ <= 1e37;
  }

  /// Reads a softmax, with or without a sink.
  bool read_normalizer(py::handle value) {
    if (PyUnicode_Check(value.ptr())) return is_text(value, "softmax");
    if (PyType_Check(value.ptr())) return false;  // a class, which Python refuses
    sink_ = in_core(value);
    return static_cast<bool>(sink_);
  }

  std::optional<double> scale_{};  // absent: 1/sqrt(head_dim)
  std::optional<scale_law> law_{};
  py::handle scales_{}, attn_mask_{};
  py::object sink_{};
  double softcap_ = 0;
  bool is_causal_ = false, hides_keys_ = false, enable_gqa_ = false, heads_last_ = false;
  causal_alignment causal_ = causal_alignment::none;
  std::int64_t offset_ = 0;
  key_window window_{};
  plain_integers lengths_, documents_;
};

}  // namespace attnscale::bindings
