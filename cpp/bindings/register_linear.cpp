// SPDX-License-Identifier: BSD-3-Clause
//
// Linear attention of one head. Python has checked the shapes; here is checked what would read or
// write where it may not.
#include "arrays.hpp"
#include "linear.hpp"

namespace attnscale::bindings {
namespace {

using detail::linear_block;

void require(bool good, const char* what) {
  if (!good) throw std::invalid_argument(what);
}

/// A matrix of the call's type with contiguous rows; returns the distance of rows.
ptrdiff_t rows_of(const py::array& array, bool wide, std::int64_t rows, std::int64_t columns) {
  const element_type type = wide ? element_type::float64 : element_type::float32;
  require(array.ndim() == 2 && array.shape(0) == rows && array.shape(1) == columns &&
              element_type_of(array.dtype()) == type && is_aligned(array) &&
              (columns < 2 || array.strides(1) == array.itemsize()),
          "rows must be aligned, contiguous and of one type and shape");
  return rows < 2 ? columns : array.strides(0) / array.itemsize();
}

void check_result(const py::array& array, bool wide, std::initializer_list<py::ssize_t> shape) {
  bool good =
      array.ndim() == static_cast<py::ssize_t>(shape.size()) && array.writeable() &&
      (array.flags() & py::array::c_style) != 0 && is_aligned(array) &&
      element_type_of(array.dtype()) == (wide ? element_type::float64 : element_type::float32);
  py::ssize_t axis = 0;
  for (const py::ssize_t extent : shape) good = good && array.shape(axis++) == extent;
  require(good, "results must be writable C-contiguous arrays of the right type and shape");
}

/// out and sums go with a query, value with a key; products and total are read and written.
void linear(const py::object& query, const py::object& key, const py::object& value,
            const py::object& out, const py::object& sums, py::array& products, py::array& total) {
  const bool reads = !query.is_none(), adds = !key.is_none();
  require(reads || adds, "either query or key must be given");
  const auto rows_like = py::reinterpret_borrow<py::array>(reads ? query : key);
  require(rows_like.ndim() == 2 && products.ndim() == 2, "query and key must have two axes");
  const bool wide = element_type_of(rows_like.dtype()) == element_type::float64;
  linear_block b{};
  b.rows = rows_like.shape(0);
  b.features = products.shape(0);
  b.value_dim = products.shape(1);
  check_result(products, true, {b.features, b.value_dim});
  check_result(total, true, {b.features});
  b.products = static_cast<double*>(products.mutable_data());
  b.total = static_cast<double*>(total.mutable_data());
  if (reads) {
    const auto q = py::reinterpret_borrow<py::array>(query);
    auto result = py::reinterpret_borrow<py::array>(out);
    auto weights = py::reinterpret_borrow<py::array>(sums);
    b.query_stride = rows_of(q, wide, b.rows, b.features);
    b.query = q.data();
    check_result(result, wide, {b.rows, b.value_dim});
    check_result(weights, wide, {b.rows});
    b.out = result.mutable_data();
    b.sums = weights.mutable_data();
  }
  if (adds) {
    const auto k = py::reinterpret_borrow<py::array>(key);
    const auto v = py::reinterpret_borrow<py::array>(value);
    b.key_stride = rows_of(k, wide, b.rows, b.features);
    b.key = k.data();
    b.value_stride = rows_of(v, wide, b.rows, b.value_dim);
    b.value = v.data();
  }
  const py::gil_scoped_release released;
  detail::run(b, wide);
}

}  // namespace

void register_linear(py::module_& module) { module.def("linear", &linear); }

}  // namespace attnscale::bindings
