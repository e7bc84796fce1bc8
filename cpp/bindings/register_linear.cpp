// SPDX-License-Identifier: BSD-3-Clause
//
// Linear attention. Python has checked the shapes; here is checked what would read or write where
// it may not.
#include "arrays.hpp"
#include "linear_problem.hpp"

namespace attnscale::bindings {
namespace {

using detail::linear_problem;

void require(bool good, const char* what) {
  if (!good) throw std::invalid_argument(what);
}

void require_inner(const numpy_array& array, std::int64_t rows, std::int64_t columns) {
  require(array.n_leading() >= 0 && array.extent(2) == rows && array.extent(1) == columns,
          "query, key, value and out must fit each other");
}

/// Every leading axis is that of `shape`, 1, or (heads that are shared) divides it.
void require_leading(const numpy_array& array, const extents& shape) {
  const int n = static_cast<int>(shape.size());
  require(array.n_leading() <= n, "leading axes must fit each other");
  for (int axis = 1; axis <= n; ++axis) {
    const std::int64_t have = array.leading_extent(axis);
    const std::int64_t want = shape[static_cast<std::size_t>(n - axis)];
    require(have == want || have == 1 || (have > 0 && want % have == 0),
            "leading axes must fit each other");
  }
}

/// Sums over keys, (..., features) twice and (..., features, value_dim): results of this call, or
/// what it reads.
struct state_arrays {
  numpy_array reference, total, products;

  state_arrays() = default;
  state_arrays(const py::tuple& arrays, std::int64_t features, std::int64_t value_dim)
      : reference(read(arrays, 0), 2), total(read(arrays, 1), 2), products(read(arrays, 2), 2) {
    require_inner(reference, 1, features);
    require_inner(total, 1, features);
    require_inner(products, features, value_dim);
  }

  static py::array read(const py::tuple& arrays, std::size_t index) {
    require(arrays.size() == 3, "sums must be three arrays");
    auto array = py::reinterpret_borrow<py::array>(arrays[index]);
    require(array.ndim() >= 2 && array.writeable() && is_aligned(array) &&
                (array.flags() & py::array::c_style) != 0 &&
                element_type_of(array.dtype()) == element_type::float64,
            "sums must be writable C-contiguous arrays of float64");
    return array;
  }

  detail::linear_sums at(const extents& index, const extents& shape) const {
    const auto number = [&](const numpy_array& array) {
      return static_cast<double*>(const_cast<void*>(array.at(index, shape)));
    };
    return {number(reference), number(total), number(products)};
  }
};

const double* read_turn(const py::object& turn, std::int64_t rows) {
  if (turn.is_none()) return nullptr;
  const auto array = py::reinterpret_borrow<py::array>(turn);
  require(array.ndim() == 2 && array.shape(0) == rows && array.shape(1) == 2 &&
              (array.flags() & py::array::c_style) != 0 && is_aligned(array) &&
              element_type_of(array.dtype()) == element_type::float64,
          "turns must be C-contiguous float64 of shape (rows, 2)");
  return static_cast<const double*>(array.data());
}

/// x W - norm_factor |x|^2 - shift are the logarithms of the features.
void read_projection(detail::linear_form& form, const py::object& projection, double norm_factor,
                     double shift) {
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

detail::linear_form read_form(int map, int norm, double scale, std::int64_t head_dim,
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
numpy_array read_decay(const py::object& decay, detail::linear_norm norm, std::int64_t n_keys) {
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

/// query and out, key and value, or all four; sums go with a call that lacks one of the pairs.
void linear(const py::object& query, const py::object& key, const py::object& value,
            const py::object& out, const py::object& sums, int map, int norm, double scale,
            const py::object& offset, const py::object& projection, double norm_factor,
            double shift, const py::object& query_turn, const py::object& key_turn,
            const py::object& decay, std::int64_t n_summed, int num_threads) {
  const bool reads = !query.is_none(), adds = !key.is_none();
  require((reads || adds) && reads == !out.is_none() && adds == !value.is_none() &&
              (reads && adds) == sums.is_none(),
          "query goes with out, key with value, and sums with one pair alone");
  require(!reads || py::reinterpret_borrow<py::array>(out).writeable(), "out must be writable");
  require(!reads || is_aligned(py::reinterpret_borrow<py::array>(out)), "out must be aligned");
  const numpy_array q(query, 2), k(key, 2), v(value, 2), o(out, 2);
  linear_problem p{};
  p.form = read_form(map, norm, scale, (reads ? q : k).extent(1), (reads ? o : v).extent(1));
  read_projection(p.form, projection, norm_factor, shift);
  p.n_queries = reads ? q.extent(2) : 0;
  p.n_keys = adds ? k.extent(2) : 0;
  if (reads) require_inner(q, p.n_queries, p.form.head_dim);
  if (reads) require_inner(o, p.n_queries, p.form.value_dim);
  if (adds) require_inner(k, p.n_keys, p.form.head_dim);
  if (adds) require_inner(v, p.n_keys, p.form.value_dim);
  const state_arrays state = sums.is_none() ? state_arrays()
                                            : state_arrays(py::reinterpret_borrow<py::tuple>(sums),
                                                           p.form.features, p.form.value_dim);
  p.is_causal = !offset.is_none();
  if (p.is_causal) p.offset = offset.cast<std::int64_t>();
  p.query_turn = reads ? read_turn(query_turn, p.n_queries) : nullptr;
  p.key_turn = adds ? read_turn(key_turn, p.n_keys) : nullptr;
  require(p.form.map != detail::feature_map::turned ||
              ((p.query_turn || !reads) && (p.key_turn || !adds)),
          "turns go with turned");
  const numpy_array faded = read_decay(decay, p.form.norm, p.n_keys);
  p.n_summed = n_summed;
  if (p.form.features == 0) p.n_keys = 0;  // keys have no weight then, whatever their values are
  p.query = q.layout(), p.key = k.layout(), p.value = v.layout(), p.output = o.layout();
  const extents shape = leading_shape({reads ? &o : &state.products});
  for (const numpy_array* each :
       {&q, &k, &v, &faded, &state.reference, &state.total, &state.products})
    if (*each) require_leading(*each, shape);
  for_each_index(shape, [&](const extents& index) {
    const auto at = [&](const numpy_array& array) { return array.at(index, shape); };
    p.heads.push_back({at(q), at(k), at(v), const_cast<void*>(at(o)),
                       static_cast<const double*>(at(faded)),
                       sums.is_none() ? detail::linear_sums{} : state.at(index, shape)});
  });
  run_released(num_threads, [&](const execution& how) { detail::run(p, how); });
}

}  // namespace

void register_linear(py::module_& module) {
  module.def("linear", &linear, py::arg("query"), py::arg("key"), py::arg("value"), py::arg("out"),
             py::arg("sums") = py::none(), py::kw_only(), py::arg("map") = 0, py::arg("norm") = 0,
             py::arg("scale") = 1.0, py::arg("offset") = py::none(),
             py::arg("projection") = py::none(), py::arg("norm_factor") = 0.0,
             py::arg("shift") = 0.0, py::arg("query_turn") = py::none(),
             py::arg("key_turn") = py::none(), py::arg("decay") = py::none(),
             py::arg("n_summed") = 0, py::arg("num_threads") = 0);
}

}  // namespace attnscale::bindings
