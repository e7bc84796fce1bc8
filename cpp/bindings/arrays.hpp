// SPDX-License-Identifier: BSD-3-Clause
//
// NumPy arrays of any strides as the core's pointers and strides, and release of the GIL while the
// core computes. The only file that knows NumPy.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attnscale/detail/call_arrays.hpp"
#include "attnscale/detail/strided_array.hpp"
#include "attnscale/problem.hpp"

namespace attnscale::bindings {

namespace py = pybind11;

/// Element type of a dtype. ml_dtypes registers bfloat16 at run time: it has a name, but no fixed
/// type number.
inline element_type element_type_of(const py::dtype& type) {
  if (type.num() == py::detail::npy_api::NPY_FLOAT_) return element_type::float32;
  if (type.num() == py::detail::npy_api::NPY_DOUBLE_) return element_type::float64;
  if (type.char_() == 'e') return element_type::float16;
  if (type.attr("name").cast<std::string>() == "bfloat16") return element_type::bfloat16;
  throw std::invalid_argument("the core does not read arrays of this type");
}

/// Whether every element lies at a multiple of the item size, as loads of whole elements need.
inline bool is_aligned(const py::array& array) {
  const py::ssize_t item = array.itemsize();
  if (reinterpret_cast<std::uintptr_t>(array.data()) % static_cast<std::size_t>(item) != 0)
    return false;
  for (py::ssize_t axis = 0; axis < array.ndim(); ++axis) {
    if (array.shape(axis) > 1 && array.strides(axis) % item != 0) return false;
  }
  return true;
}

/// Arrays whose dtype sets the element type, or whose element type the caller knows (masks,
/// intervals of keys).
enum class elements { floats, known };

/// A NumPy array, or None, in the core's form: the last `inner` axes are the core's, the others
/// lead (..., heads). Keeps the array (or an aligned copy) alive.
class numpy_array : public strided_array {
 public:
  numpy_array() = default;  ///< absent

  numpy_array(const py::object& array_or_none, int inner, elements kind = elements::floats) {
    if (array_or_none.is_none()) return;
    auto array = py::reinterpret_borrow<py::array>(array_or_none);
    if (!is_aligned(array)) array = py::array(array.attr("copy")());
    const py::dtype dtype = array.dtype();
    const element_type type =
        kind == elements::floats ? element_type_of(dtype) : element_type::float32;
    const py::ssize_t item = array.itemsize();
    extents shape(array.shape(), array.shape() + array.ndim());
    extents strides(array.strides(), array.strides() + array.ndim());
    for (auto& stride : strides) stride /= item;
    strided_array::operator=
        ({array.data(), type, item, std::move(shape), std::move(strides), inner});
    is_boolean_ = dtype.kind() == 'b';
    owner_ = std::move(array);
  }

  bool is_boolean() const { return is_boolean_; }

 private:
  py::object owner_;  // not py::array: an empty one of those allocates
  bool is_boolean_ = false;
};

/// A new C-contiguous array (leading..., inner...), whose pointer goes to the core.
template <class T>
py::array new_array(const extents& leading, std::initializer_list<std::int64_t> inner) {
  const extents shape = joined(leading, inner);
  count_entries(shape);
  return py::array(py::dtype::of<T>(), shape);
}

inline py::array new_array(const extents& leading, std::initializer_list<std::int64_t> inner,
                           element_type type) {
  return type == element_type::float64 ? new_array<double>(leading, inner)
                                       : new_array<float>(leading, inner);
}

/// Releases the GIL and handles Ctrl-C: the core calls `interrupted` now and then, on the thread
/// that made this object.
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

/// Runs `work(execution)` while holding the GIL: for work that takes less time than releasing it.
template <class Work>
void run_held(int num_threads, Work work) {
  work(execution{num_threads, nullptr, nullptr});
}

/// Runs `work(execution)` without the GIL; a Python error raised by a signal handler
/// (KeyboardInterrupt) is rethrown as itself.
template <class Work>
void run_released(int num_threads, Work work) {
  try {
    released_gil released;
    work(released.with_threads(num_threads));
  } catch (const attnscale::interrupted&) {
    throw py::error_already_set();
  }
}

/// Whether a call takes a microsecond or two.
inline bool is_brief(const attention_problem& p) {
  const auto products = static_cast<double>(p.heads.size()) * static_cast<double>(p.n_queries) *
                        static_cast<double>(p.n_keys);
  return products * static_cast<double>(p.head_dim + p.value_dim) <= 0x1p14;
}

/// Runs a forward or backward pass; releases the GIL if the pass is long enough.
template <class Problem>
void run_call(const Problem& problem, int num_threads) {
  const auto work = [&](const execution& how) { run(problem, how); };
  is_brief(problem) ? run_held(num_threads, work) : run_released(num_threads, work);
}

}  // namespace attnscale::bindings
