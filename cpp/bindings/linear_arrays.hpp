// SPDX-License-Identifier: BSD-3-Clause
//
// Arguments of the calls of linear attention. Python has checked the shapes; here is checked what
// would read or write where it may not.
#pragma once

#include "arrays.hpp"
#include "attnscale/linear_form.hpp"

namespace attnscale::bindings {

inline void require(bool good, const char* what) {
  if (!good) throw std::invalid_argument(what);
}

inline void require_inner(const numpy_array& array, std::int64_t rows, std::int64_t columns) {
  require(array.n_leading() >= 0 && array.extent(2) == rows && array.extent(1) == columns,
          "query, key, value and out must fit each other");
}

/// Every leading axis is that of `shape`, 1, or (heads that are shared) divides it.
inline void require_leading(const numpy_array& array, const extents& shape) {
  const int n = static_cast<int>(shape.size());
  require(array.n_leading() <= n, "leading axes must fit each other");
  for (int axis = 1; axis <= n; ++axis) {
    const std::int64_t have = array.leading_extent(axis);
    const std::int64_t want = shape[static_cast<std::size_t>(n - axis)];
    require(have == want || have == 1 || (have > 0 && want % have == 0),
            "leading axes must fit each other");
  }
}

inline const double* read_turn(const py::object& turn, std::int64_t rows) {
  if (turn.is_none()) return nullptr;
  const auto array = py::reinterpret_borrow<py::array>(turn);
  require(array.ndim() == 2 && array.shape(0) == rows && array.shape(1) == 2 &&
              (array.flags() & py::array::c_style) != 0 && is_aligned(array) &&
              element_type_of(array.dtype()) == element_type::float64,
          "turns must be C-contiguous float64 of shape (rows, 2)");
  return static_cast<const double*>(array.data());
}

/// x W - norm_factor |x|^2 - shift are the logarithms of the features.
inline void read_projection(detail::linear_form& form, const py::object& projection,
                            double norm_factor, double shift) {
  require(projection.is_none() == (form.map != detail::feature_map::projected),
          "projection goes with projected");
  if (projection.is_none()) return;
  const auto array = py::reinterpret_borrow<py::array>(projection);
  require(array.ndim() == 2 && array.shape(0) == form.head_dim &&
              (array.flags() & py::array::c_style) != 0 && is_aligned(array) &&
              element_type_of(array.dtype()) == element_type::float64,
          "projection must be C-contiguous float64 of shape (head_dim, features)");
  form.projection = array.data();
  form.features = array.shape(1);
  form.norm_factor = norm_factor;
  form.shift = shift;
}

inline detail::linear_form read_form(int map, int norm, double scale, std::int64_t head_dim,
                                     std::int64_t value_dim) {
  require(map >= 0 && map <= static_cast<int>(detail::feature_map::projected) && norm >= 0 &&
              norm <= static_cast<int>(detail::linear_norm::none),
          "map and norm must be one of those that there are");
  detail::linear_form form{};
  form.map = static_cast<detail::feature_map>(map);
  form.norm = static_cast<detail::linear_norm>(norm);
  require(
      form.norm != detail::linear_norm::channels || form.map == detail::feature_map::exponential,
      "norm by channels goes with exponentials");
  form.scale = scale;
  form.head_dim = head_dim;
  form.value_dim = value_dim;
  form.features = form.map == detail::feature_map::turned ? 2 * head_dim : head_dim;
  return form;
}

/// Log-decays (..., n_keys), rows contiguous.
inline numpy_array read_decay(const py::object& decay, detail::linear_norm norm,
                              std::int64_t n_keys) {
  if (decay.is_none()) return {};
  const auto array = py::reinterpret_borrow<py::array>(decay);
  require(norm == detail::linear_norm::none && array.ndim() >= 1 && is_aligned(array) &&
              array.shape(array.ndim() - 1) == n_keys &&
              (n_keys < 2 || array.size() == 0 ||
               array.strides(array.ndim() - 1) == array.itemsize()) &&
              element_type_of(array.dtype()) == element_type::float64,
          "decay goes with norm none, as float64 of shape (..., n_keys) with contiguous rows");
  return {decay, 1};
}

}  // namespace attnscale::bindings
