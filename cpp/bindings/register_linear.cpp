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

/// The sums over the keys before, in double, or nothing.
void read_base(linear_block& b, const py::object& products, const py::object& total) {
  require(products.is_none() == total.is_none(), "base sums come as two arrays");
  if (products.is_none()) return;
  auto s = py::reinterpret_borrow<py::array>(products),
       z = py::reinterpret_borrow<py::array>(total);
  check_result(s, true, {b.features, b.value_dim});
  check_result(z, true, {b.features});
  b.base_products = static_cast<const double*>(s.data());
  b.base_total = static_cast<const double*>(z.data());
}

/// One number for each feature, of the call's type, or null.
const void* read_shift(const py::object& shift, bool wide, std::int64_t features) {
  if (shift.is_none()) return nullptr;
  const auto array = py::reinterpret_borrow<py::array>(shift);
  check_result(array, wide, {features});
  return array.data();
}

void read_query(linear_block& b, bool wide, const py::object& query, const py::object& out,
                const py::object& sums) {
  const auto q = py::reinterpret_borrow<py::array>(query);
  auto result = py::reinterpret_borrow<py::array>(out);
  auto weights = py::reinterpret_borrow<py::array>(sums);
  b.query_stride = rows_of(q, wide, b.rows, b.features);
  b.query = q.data();
  require(result.writeable(), "results must be writable");
  b.out_stride = rows_of(result, wide, b.rows, b.value_dim);
  b.out = result.mutable_data();
  check_result(weights, wide, {b.rows});
  b.sums = weights.mutable_data();
}

/// out and sums go with a query, value with a key; products and total are read and written.
void linear(const py::object& query, const py::object& key, const py::object& value,
            const py::object& out, const py::object& sums, py::array& products, py::array& total,
            const py::object& base_products, const py::object& base_total,
            const py::object& query_shift, const py::object& key_reference, int map,
            bool per_channel, bool divide) {
  const bool reads = !query.is_none(), adds = !key.is_none();
  require(reads || adds, "either query or key must be given");
  const auto rows_like = py::reinterpret_borrow<py::array>(reads ? query : key);
  require(rows_like.ndim() == 2 && products.ndim() == 2, "query and key must have two axes");
  require(map >= 0 && map <= 3, "map must be one of the four");
  require(!per_channel || (map == 3 && adds), "per_channel goes with exponentials of keys");
  const bool wide = element_type_of(rows_like.dtype()) == element_type::float64;
  linear_block b{};
  b.rows = rows_like.shape(0);
  b.features = products.shape(0);
  b.value_dim = products.shape(1);
  b.map = static_cast<detail::feature_map>(map);
  b.per_channel = per_channel;
  b.divide = divide;
  check_result(products, true, {b.features, b.value_dim});
  check_result(total, true, {b.features});
  b.products = static_cast<double*>(products.mutable_data());
  b.total = static_cast<double*>(total.mutable_data());
  read_base(b, base_products, base_total);
  b.query_shift = read_shift(query_shift, wide, b.features);
  b.key_reference = read_shift(key_reference, wide, b.features);
  if (reads) read_query(b, wide, query, out, sums);
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

void register_linear(py::module_& module) {
  module.def("linear", &linear, py::arg("query"), py::arg("key"), py::arg("value"), py::arg("out"),
             py::arg("sums"), py::arg("products"), py::arg("total"), py::kw_only(),
             py::arg("base_products") = py::none(), py::arg("base_total") = py::none(),
             py::arg("query_shift") = py::none(), py::arg("key_reference") = py::none(),
             py::arg("map") = 0, py::arg("per_channel") = false, py::arg("divide") = false);
}

}  // namespace attnscale::bindings
