// SPDX-License-Identifier: BSD-3-Clause
//
// _core.Intervals: visible keys of each query. Python has converted the options to integers and
// arrays of int64 or uint64; the core interprets them.
#include <optional>

#include "arrays.hpp"
#include "attnscale/detail/intervals.hpp"

namespace attnscale::bindings {
namespace {

std::int64_t whole(PyObject* number) {
  const std::int64_t value = PyLong_AsLongLong(number);
  if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
  return value;
}

/// Integers of an array, which is kept alive.
class integers {
 public:
  explicit integers(const py::object& given) : array_(given, 0, elements::known) {
    if (!given.is_none())
      is_unsigned_ = py::reinterpret_borrow<py::array>(given).dtype().kind() == 'u';
  }
  std::optional<integer_array> read() const {
    if (!array_) return std::nullopt;
    integer_array found = array_.integers();
    found.is_unsigned = is_unsigned_;
    return found;
  }

 private:
  numpy_array array_;
  bool is_unsigned_ = false;
};

/// batch           extents of all leading axes but the heads
/// causal          None, "top_left", "bottom_right" or an integer, the offset
/// window          None, or (left, right) of integers or None
/// key_lengths     an array that broadcasts to the batch, or None
/// document_ids    an array that broadcasts to (batch..., n_keys), or None
key_intervals read_intervals(std::int64_t n_queries, std::int64_t n_keys, const py::tuple& batch,
                             const py::object& causal, const py::object& window,
                             const py::object& key_lengths, const py::object& document_ids) {
  extents leading(batch.size(), 0);
  for (std::size_t axis = 0; axis < leading.size(); ++axis)
    leading[axis] = whole(PyTuple_GET_ITEM(batch.ptr(), static_cast<py::ssize_t>(axis)));
  const integers lengths(key_lengths), ids(document_ids);
  interval_options options{n_queries, n_keys, leading};
  if (PyLong_Check(causal.ptr())) {
    options.causal = causal_alignment::offset;
    options.causal_offset = whole(causal.ptr());
  } else if (!causal.is_none()) {
    const bool is_first = PyUnicode_CompareWithASCIIString(causal.ptr(), "top_left") == 0;
    options.causal = is_first ? causal_alignment::top_left : causal_alignment::bottom_right;
  }
  if (!window.is_none()) {
    std::int64_t* const sides[] = {&options.window.left, &options.window.right};
    for (py::ssize_t side = 0; side < 2; ++side)
      if (PyObject* const extent = PyTuple_GET_ITEM(window.ptr(), side); extent != Py_None)
        *sides[side] = whole(extent);
  }
  options.key_lengths = lengths.read();
  options.document_ids = ids.read();
  return key_intervals(options);
}

/// A view of numbers owned by `owner`.
py::object view(const std::optional<key_intervals::rows>& rows, const py::object& owner) {
  if (!rows) return py::none();
  return py::array_t<std::int64_t>(rows->extents, rows->numbers.data(), owner);
}

/// A new array.
py::object made(const key_intervals::rows& rows) {
  return py::array_t<std::int64_t>(rows.extents, rows.numbers.data());
}

/// Adds a property that is an array, or None.
template <const std::optional<key_intervals::rows>& (key_intervals::*get)() const>
py::object property(const py::object& self) {
  return view((self.cast<const key_intervals&>().*get)(), self);
}

py::object offset(const py::object& self) {
  const key_intervals::rows& rows = self.cast<const key_intervals&>().offset();
  if (rows.extents.empty()) return py::int_(rows.numbers[0]);
  return view(rows, self);
}

template <key_intervals::rows (key_intervals::*make)() const>
py::object method(const key_intervals& self) {
  return made((self.*make)());
}

}  // namespace

void register_intervals(py::module_& module) {
  py::class_<key_intervals>(module, "Intervals")
      .def(py::init(&read_intervals))
      .def_property_readonly("begin", &property<&key_intervals::begin>)
      .def_property_readonly("end", &property<&key_intervals::end>)
      .def_property_readonly("origin", &property<&key_intervals::origin>)
      .def_property_readonly("offset", &offset)
      .def("aligned", &method<&key_intervals::aligned>)
      .def("positions", &method<&key_intervals::positions>)
      .def("row_sizes", &method<&key_intervals::row_sizes>)
      .def("visible_keys", &method<&key_intervals::visible_keys>)
      .def("distances", &method<&key_intervals::distances>)
      .def("reach", &key_intervals::reach);
}

}  // namespace attnscale::bindings
