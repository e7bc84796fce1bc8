// SPDX-License-Identifier: BSD-3-Clause
//
// Tensors of another library through DLPack's table of functions: read in place and created without
// going through Python.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "arrays.hpp"
#include "dlpack_abi.hpp"

namespace attnscale::bindings {

/// A new array of a library, and the start of its elements.
struct new_result {
  py::object array;
  void* data;
};

/// Strides of (..., heads, n, dim) in the memory of (..., n, heads, dim).
inline extents row_major_with_heads_inside(extents shape) {
  const std::size_t heads = shape.size() - 3, rows = shape.size() - 2;
  std::swap(shape[heads], shape[rows]);
  extents strides = row_major(shape);
  std::swap(strides[heads], strides[rows]);
  return strides;
}

class tensor_library {
 public:
  /// The library of a tensor, if it has the table of functions.
  static std::optional<tensor_library> of(py::handle tensor) {
    // The calls of a thread are on tensors of one type, which is kept alive.
    thread_local PyTypeObject* last_type = nullptr;
    thread_local const dlpack::functions* last = nullptr;
    PyTypeObject* const type = Py_TYPE(tensor.ptr());
    if (type != last_type) {
      const dlpack::functions* const found = functions_of(type);
      if (!found) return std::nullopt;
      Py_INCREF(type);
      Py_XDECREF(reinterpret_cast<PyObject*>(last_type));
      last_type = type, last = found;
    }
    return tensor_library(last);
  }

  /// A tensor on the CPU of an element type of the core, whose last `inner` axes are the core's; it
  /// has to live until the call ends.
  std::optional<strided_array> read(py::handle object, int inner = 2) const {
    const auto lent = lend(object);
    const auto type = lent ? element_type_of(lent->type) : std::nullopt;
    return type ? std::optional(view(*lent, *type, inner)) : std::nullopt;
  }

  /// A tensor of signed 64-bit integers, none of whose axes are the core's.
  std::optional<strided_array> read_integers(py::handle object) const {
    const auto lent = lend(object);
    if (!lent || lent->type.code != dlpack::integer || lent->type.bits != 64) return std::nullopt;
    return view(*lent, element_type::float64, 0);
  }

  /// A tensor of booleans, whose last two axes are the core's.
  std::optional<strided_array> read_booleans(py::handle object) const {
    const auto lent = lend(object);
    if (!lent || lent->type.code != dlpack::boolean || lent->type.bits != 8) return std::nullopt;
    return view(*lent, element_type::float32, 2);
  }

  new_result make(extents shape, element_type type) const {
    return make(std::move(shape), data_type_of(type), false);
  }
  /// A tensor (..., heads, n, dim) whose memory is that of (..., n, heads, dim).
  new_result make_with_heads_inside(extents shape, element_type type) const {
    return make(std::move(shape), data_type_of(type), true);
  }

  new_result make_counts(extents shape) const {
    return make(std::move(shape), {dlpack::integer, 64, 1}, false);
  }

 private:
  explicit tensor_library(const dlpack::functions* functions) : functions_(functions) {}

  /// The table of functions of a type, or null.
  static const dlpack::functions* functions_of(PyTypeObject* type) {
    const auto found = py::reinterpret_steal<py::object>(
        PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), dlpack::attribute));
    if (!found) PyErr_Clear();
    if (!found || !PyCapsule_IsValid(found.ptr(), dlpack::capsule)) return nullptr;
    const auto* functions =
        static_cast<const dlpack::functions*>(PyCapsule_GetPointer(found.ptr(), dlpack::capsule));
    const bool serves = functions->offered.major == dlpack::major_version && functions->lend;
    return serves ? functions : nullptr;
  }

  /// A tensor on the CPU; nullopt for anything else.
  std::optional<dlpack::tensor> lend(py::handle object) const {
    dlpack::tensor lent;
    if (functions_->lend(object.ptr(), &lent) != 0) {
      PyErr_Clear();
      return std::nullopt;
    }
    if (lent.device != dlpack::cpu || lent.type.lanes != 1) return std::nullopt;
    return lent;
  }
  static strided_array view(const dlpack::tensor& lent, element_type type, int inner) {
    return {static_cast<char*>(lent.data) + lent.byte_offset,
            type,
            lent.type.bits / 8,
            extents(lent.shape, lent.shape + lent.n_axes),
            extents(lent.strides, lent.strides + lent.n_axes),
            inner};
  }

  static std::optional<element_type> element_type_of(dlpack::data_type type) {
    if (type.code == dlpack::brain_floating && type.bits == 16) return element_type::bfloat16;
    if (type.code != dlpack::floating) return std::nullopt;
    if (type.bits == 16) return element_type::float16;
    if (type.bits == 32) return element_type::float32;
    if (type.bits == 64) return element_type::float64;
    return std::nullopt;
  }

  static dlpack::data_type data_type_of(element_type type) {
    switch (type) {
      case element_type::float16:
        return {dlpack::floating, 16, 1};
      case element_type::bfloat16:
        return {dlpack::brain_floating, 16, 1};
      case element_type::float64:
        return {dlpack::floating, 64, 1};
      case element_type::float32:
        break;
    }
    return {dlpack::floating, 32, 1};
  }

  new_result make(extents shape, dlpack::data_type type, bool heads_inside) const {
    const std::size_t heads = shape.size() - 3, rows = shape.size() - 2;
    extents strides = heads_inside ? row_major_with_heads_inside(shape) : extents();
    if (heads_inside) std::swap(shape[heads], shape[rows]);
    dlpack::tensor prototype{
        nullptr, dlpack::cpu,  0,       static_cast<std::int32_t>(shape.size()),
        type,    shape.data(), nullptr, 0};
    dlpack::managed_tensor* made = nullptr;
    const auto say = [](void*, const char*, const char* message) {
      PyErr_SetString(PyExc_MemoryError, message);
    };
    if (functions_->allocate(&prototype, &made, nullptr, say) != 0) throw py::error_already_set();
    if (heads_inside) {
      std::swap(made->described.shape[heads], made->described.shape[rows]);
      if (!made->described.strides) made->described.strides = strides.data();
      std::copy(strides.begin(), strides.end(), made->described.strides);
    }
    void* const data = static_cast<char*>(made->described.data) + made->described.byte_offset;
    void* object = nullptr;
    if (functions_->to_object(made, &object) != 0) throw py::error_already_set();
    return {py::reinterpret_steal<py::object>(static_cast<PyObject*>(object)), data};
  }

  const dlpack::functions* functions_;
};

}  // namespace attnscale::bindings
