// SPDX-License-Identifier: BSD-3-Clause
//
// Linear attention.
#include "arrays.hpp"
#include "attnscale/linear_problem.hpp"
#include "linear_arrays.hpp"

namespace attnscale::bindings {
namespace {

using detail::linear_problem;

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
