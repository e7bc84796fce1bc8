// SPDX-License-Identifier: BSD-3-Clause
//
// Linear attention.
#include "arrays.hpp"
#include "attnscale/detail/linear_problem.hpp"
#include "linear_arrays.hpp"

namespace attnscale::bindings {
namespace {

using detail::linear_problem;

/// Sums over keys, (..., features) twice and (..., features, value_dim): results of this call, or
/// its inputs.
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

/// Arrays of a LinearCall: query and out, key and value, or all four; a call that lacks one of the
/// pairs has sums.
struct linear_forward_arrays {
  numpy_array query, key, value, out, decay;
  state_arrays sums;
  bool reads, adds;

  explicit linear_forward_arrays(const record& call)
      : query(call["query"], 2),
        key(call["key"], 2),
        value(call["value"], 2),
        out(call["out"], 2),
        reads(query),
        adds(key) {
    require((reads || adds) && reads == bool(out) && adds == bool(value) &&
                (reads && adds) == call["sums"].is_none(),
            "query goes with out, key with value, and sums with one pair alone");
    if (!reads) return;
    const auto written = py::reinterpret_borrow<py::array>(call["out"]);
    require(written.writeable(), "out must be writable");
    require(is_aligned(written), "out must be aligned");
  }

  /// Sizes of one head, common to all arrays.
  void set_sizes(linear_problem& p, const record& call) {
    p.form = read_form(record(call["form"]), (reads ? query : key).extent(1),
                       (reads ? out : value).extent(1));
    p.n_queries = reads ? query.extent(2) : 0;
    p.n_keys = adds ? key.extent(2) : 0;
    if (reads) require_inner(query, p.n_queries, p.form.head_dim);
    if (reads) require_inner(out, p.n_queries, p.form.value_dim);
    if (adds) require_inner(key, p.n_keys, p.form.head_dim);
    if (adds) require_inner(value, p.n_keys, p.form.value_dim);
    if (!(reads && adds))
      sums = state_arrays(py::reinterpret_borrow<py::tuple>(call["sums"]), p.form.features,
                          p.form.value_dim);
    decay = read_decay(call["decay"], p.form.norm, p.n_keys);
  }
};

void linear(const py::object& given) {
  const record call(given);
  linear_forward_arrays x(call);
  linear_problem p{};
  x.set_sizes(p, call);
  read_positions(p, call, x.reads, x.adds);
  p.n_summed = call.get<std::int64_t>("n_summed");
  if (p.form.features == 0) p.n_keys = 0;  // keys have zero weight then, whatever their values are
  p.query = x.query.layout(), p.key = x.key.layout(), p.value = x.value.layout();
  p.output = x.out.layout();
  const extents shape = common_leading({x.reads ? &x.out : &x.sums.products});
  for (const numpy_array* each :
       {&x.query, &x.key, &x.value, &x.decay, &x.sums.reference, &x.sums.total, &x.sums.products})
    if (*each) require_leading(*each, shape);
  for_each_index(shape, [&](const extents& index) {
    const auto at = [&](const numpy_array& array) { return array.at(index, shape); };
    p.heads.push_back(
        {{at(x.query), at(x.key), at(x.value), static_cast<const double*>(at(x.decay))},
         const_cast<void*>(at(x.out)),
         x.reads && x.adds ? detail::linear_sums{} : x.sums.at(index, shape)});
  });
  run_released(call.get<int>("num_threads"), [&](const execution& how) { detail::run(p, how); });
}

template <std::size_t N>
py::tuple as_tuple(const std::array<std::string_view, N>& names) {
  py::tuple found(N);
  for (std::size_t i = 0; i < N; ++i) found[i] = py::str(names[i]);
  return found;
}

}  // namespace

void register_linear(py::module_& module) {
  module.attr("feature_map_names") = as_tuple(feature_map_names);
  module.attr("linear_norm_names") = as_tuple(linear_norm_names);
  module.def("linear", &linear);
}

}  // namespace attnscale::bindings
