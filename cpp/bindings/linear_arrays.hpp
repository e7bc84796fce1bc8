// SPDX-License-Identifier: BSD-3-Clause
//
// Arguments of the linear attention calls. Python has checked the shapes; the checks here prevent
// reads and writes out of bounds.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "arrays.hpp"
#include "attnscale/detail/linear_problem.hpp"

namespace attnscale::bindings {

inline void require(bool good, const char* what) {
  if (!good) throw std::invalid_argument(what);
}

inline void require_inner(const numpy_array& array, std::int64_t rows, std::int64_t columns) {
  require(array.n_leading() >= 0 && array.extent(2) == rows && array.extent(1) == columns,
          "query, key, value and out must fit each other");
}

/// Refuses leading axes other than that of `shape`, 1, or (shared heads) a divisor of it.
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

/// A record of variants/_linear_form.py, whose fields are read by name. It keeps alive the arrays
/// that the results of read_form and read_turn point into.
class record {
 public:
  explicit record(py::object given) : given_(std::move(given)) {}
  py::object operator[](const char* field) const { return given_.attr(field); }
  template <class T>
  T get(const char* field) const {
    return given_.attr(field).cast<T>();
  }

 private:
  py::object given_;
};

/// Names of the enumerators of detail::feature_map and detail::linear_norm, in their order.
inline constexpr std::array<std::string_view, 7> feature_map_names{
    "given", "elu", "relu", "turned", "exponential", "log_elu", "projected"};
inline constexpr std::array<std::string_view, 4> linear_norm_names{"weights", "count", "channels",
                                                                   "none"};
static_assert(feature_map_names.size() ==
              static_cast<std::size_t>(detail::feature_map::projected) + 1);
static_assert(linear_norm_names.size() == static_cast<std::size_t>(detail::linear_norm::none) + 1);

/// Enumerator named by a field of a record.
template <class Enum, std::size_t N>
Enum enumerator(const record& form, const char* field,
                const std::array<std::string_view, N>& names) {
  const auto name = form.get<std::string>(field);
  for (std::size_t i = 0; i < N; ++i)
    if (names[i] == name) return static_cast<Enum>(i);
  throw std::invalid_argument("there is no " + std::string(field) + " " + name);
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

/// Reads the projection of the features with logarithms x W - norm_factor |x|^2 - shift.
inline void read_projection(detail::linear_form& form, const record& given) {
  const py::object projection = given["projection"];
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
  form.norm_factor = given.get<double>("norm_factor");
  form.shift = given.get<double>("shift");
}

/// Reads a LinearForm; the array of its projection has to outlive the result.
inline detail::linear_form read_form(const record& given, std::int64_t head_dim,
                                     std::int64_t value_dim) {
  detail::linear_form form{};
  form.map = enumerator<detail::feature_map>(given, "map", feature_map_names);
  form.norm = enumerator<detail::linear_norm>(given, "norm", linear_norm_names);
  require(
      form.norm != detail::linear_norm::channels || form.map == detail::feature_map::exponential,
      "norm by channels goes with exponentials");
  form.scale = given.get<double>("scale");
  form.head_dim = head_dim;
  form.value_dim = value_dim;
  form.features = form.map == detail::feature_map::turned ? 2 * head_dim : head_dim;
  read_projection(form, given);
  return form;
}

/// Reads the visible keys of queries, and the turns of the rows that a call has: `reads` and `adds`
/// say whether it has queries and keys.
inline void read_positions(detail::linear_sequence& problem, const record& call, bool reads = true,
                           bool adds = true) {
  const py::object offset = call["offset"];
  problem.is_causal = !offset.is_none();
  if (problem.is_causal) problem.offset = offset.cast<std::int64_t>();
  problem.query_turn = reads ? read_turn(call["query_turn"], problem.n_queries) : nullptr;
  problem.key_turn = adds ? read_turn(call["key_turn"], problem.n_keys) : nullptr;
  require(problem.form.map != detail::feature_map::turned ||
              ((problem.query_turn || !reads) && (problem.key_turn || !adds)),
          "turns go with turned");
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
