// SPDX-License-Identifier: BSD-3-Clause
//
// Experiments: rows, sums over them, estimates and stopping rules, as in experiments.hpp. Python
// has checked the values; a tally is an object of its class of that name, whose fields are read by
// name.
#include <pybind11/stl.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "attnscale/detail/refuse.hpp"
#include "attnscale/experiments.hpp"
#include "attnscale/normalizer_traits.hpp"
#include "experiments/estimates.hpp"
#include "experiments/experiment_rows.hpp"
#include "named.hpp"

namespace attnscale::bindings {
namespace {

using detail::check_at_least;
using doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;

extents shape_of(const py::array& array) { return {array.shape(), array.shape() + array.ndim()}; }

py::array array_of(const std::vector<double>& numbers, const extents& shape) {
  py::array found = new_array<double>(shape, {});
  std::copy(numbers.begin(), numbers.end(), static_cast<double*>(found.mutable_data()));
  return found;
}

/// A Python tally, and the shapes (..., columns) and (..., columns, columns) of its arrays.
struct shaped_tally {
  tally rows;
  extents shape, square;
};

shaped_tally read_tally(const py::object& kept) {
  const auto array = [&](const char* name) { return doubles(kept.attr(name)); };
  const auto numbers = [](const doubles& each) {
    return std::vector<double>(each.data(), each.data() + each.size());
  };
  const doubles origin = array("origin"), products = array("products");
  if (origin.ndim() < 1 || origin.size() == 0)
    throw std::invalid_argument("origin must have at least one number");
  const std::int64_t columns = origin.shape(origin.ndim() - 1);
  return {tally(columns, origin.size() / columns,
                {kept.attr("rows").cast<std::int64_t>(), numbers(origin), numbers(array("sums")),
                 numbers(products)}),
          shape_of(origin), shape_of(products)};
}

/// Returns (rows, origin, sums, products) with more rows (count, ..., columns).
py::tuple tally_add(const py::object& kept, const doubles& rows) {
  shaped_tally all = read_tally(kept);
  const std::int64_t width = all.rows.columns() * all.rows.entries();
  if (rows.ndim() < 1 || rows.size() != rows.shape(0) * width)
    throw std::invalid_argument("rows must have " + std::to_string(width) + " numbers each, got " +
                                detail::text_of(shape_of(rows)));
  all.rows.add(rows.data(), rows.shape(0));
  const tally_sums& sums = all.rows.kept();
  return py::make_tuple(sums.rows, array_of(sums.origin, all.shape), array_of(sums.sums, all.shape),
                        array_of(sums.products, all.square));
}

py::array tally_mean(const py::object& kept) {
  const shaped_tally all = read_tally(kept);
  return array_of(all.rows.mean(), all.shape);
}

py::array tally_covariance(const py::object& kept) {
  const shaped_tally all = read_tally(kept);
  return array_of(all.rows.covariance(), all.square);
}

py::array tally_standard_error(const py::object& kept) {
  const shaped_tally all = read_tally(kept);
  return array_of(all.rows.standard_error(), all.shape);
}

/// Returns (values, errors), each (..., columns).
py::tuple mc_means_and_shares(const py::object& kept, const std::vector<std::size_t>& shares,
                              const std::vector<std::size_t>& bounded) {
  const shaped_tally all = read_tally(kept);
  std::vector<detail::column_kind> kinds(static_cast<std::size_t>(all.rows.columns()));
  for (const std::size_t column : bounded) kinds.at(column) = detail::column_kind::bounded;
  for (const std::size_t column : shares) kinds.at(column) = detail::column_kind::share;
  const detail::values_and_errors found = detail::means_and_shares(all.rows, kinds);
  return py::make_tuple(array_of(found.value, all.shape), array_of(found.error, all.shape));
}

/// Returns (values, errors) of variance, scaled variance, mean and kurtosis.
py::tuple mc_dot_product_moments(const py::object& kept, std::int64_t head_dim) {
  const shaped_tally all = read_tally(kept);
  if (all.rows.columns() != 4 || all.rows.entries() != 1)
    throw std::invalid_argument("a tally of dot products has 4 columns");
  const detail::values_and_errors found = detail::dot_product_moments(all.rows, head_dim);
  return py::make_tuple(array_of(found.value, all.shape), array_of(found.error, all.shape));
}

/// Rows of `what`, of shape (count, inner...).
template <class Case>
py::array drawn(const Case& what, std::initializer_list<std::int64_t> inner, std::uint64_t key,
                std::int64_t first, std::int64_t count, int num_threads) {
  check_at_least("count", count, 0);
  py::array found = new_array<double>({count}, inner);
  auto* const out = static_cast<double*>(found.mutable_data());
  run_released(num_threads,
               [&](const execution& how) { detail::draw_rows(what, key, first, count, out, how); });
  return found;
}

/// Rows of an experiment on scores: (count, betas, quantities).
py::array mc_experiment_rows(const std::string& experiment, const std::string& model,
                             std::int64_t n, std::int64_t head_dim, double correlation,
                             double cosine, const std::vector<double>& betas, std::uint64_t key,
                             std::int64_t first, std::int64_t count, int num_threads) {
  const detail::score_experiment_case what{detail::score_experiment_named(experiment),
                                           model_named(model),
                                           n,
                                           head_dim,
                                           correlation,
                                           cosine,
                                           betas};
  const auto laws = static_cast<std::int64_t>(betas.size());
  const auto columns = static_cast<std::int64_t>(detail::quantities_of(what.what).size());
  return drawn(what, {laws, columns}, key, first, count, num_threads);
}

/// Rows of power means of dot products: (count, 4).
py::array mc_dot_product_rows(std::int64_t head_dim, const std::string& distribution,
                              double query_mean, double key_mean, double std, std::uint64_t key,
                              std::int64_t first, std::int64_t count, int num_threads) {
  const detail::dot_product_case what{head_dim, distribution_named(distribution), query_mean,
                                      key_mean, std};
  return drawn(what, {4}, key, first, count, num_threads);
}

/// Rows of projections: (count, eps, quantities), for points (n, dim) from mc_points, or normal
/// points if None.
py::array mc_projection_rows(const py::object& points, std::int64_t n, std::int64_t dim,
                             std::int64_t k, const std::string& kind,
                             const std::vector<double>& eps, std::uint64_t key, std::int64_t first,
                             std::int64_t count, int num_threads) {
  py::array_t<float, py::array::c_style> given;
  detail::projections_case what{nullptr, n, dim, k, projection_named(kind), eps};
  if (!points.is_none()) {
    given = py::array_t<float, py::array::c_style>(points);
    if (given.size() != n * dim) throw std::invalid_argument("points must have n x dim numbers");
    what.points = given.data();
  }
  const auto columns = static_cast<std::int64_t>(detail::quantities_of_projections().size());
  return drawn(what, {static_cast<std::int64_t>(eps.size()), columns}, key, first, count,
               num_threads);
}

/// Random scores: (count, n).
py::array mc_random_scores(const std::string& model, std::int64_t n, std::int64_t head_dim,
                           std::uint64_t key, std::int64_t first, std::int64_t count,
                           int num_threads) {
  check_at_least("count", count, 0);
  check_at_least("n", n, 1);
  const detail::random_scores_case what{model_named(model), n, head_dim};
  py::array found = new_array<double>({count}, {n});
  auto* const out = static_cast<double*>(found.mutable_data());
  run_released(num_threads, [&](const execution& how) {
    detail::draw_scores(what, key, first, count, out, how);
  });
  return found;
}

/// Option by name, if present.
template <class T>
T argument(const py::dict& given, const char* name, T otherwise) {
  return given.contains(name) ? given[name].cast<T>() : otherwise;
}

std::vector<law_or_scale> laws_of(const py::dict& given) {
  std::vector<law_or_scale> found;
  for (const py::handle each : given["law"])
    found.push_back(py::isinstance<py::str>(each)
                        ? law_or_scale(scale_law::parse(each.cast<std::string>()))
                        : law_or_scale(each.cast<double>()));
  return found;
}

std::vector<normalizer_choice> normalizers_of(const py::dict& given) {
  std::vector<normalizer_choice> found;
  for (const py::handle each : given["normalizer"]) {
    const normalizer rule = normalizer_named(each.attr("kind").cast<std::string>());
    found.push_back({rule,
                     {each.attr("alpha").cast<double>(), each.attr("k").cast<std::int64_t>(),
                      each.attr("eps").cast<double>()},
                     {}});
    if (!each.attr("sink").is_none()) found.back().number = each.attr("sink").cast<double>();
  }
  return found;
}

using experiment_call = std::function<experiment_result(const run_options&)>;

experiment_call call_with_laws(const std::string& name, const py::dict& given) {
  const auto law = laws_of(given);
  const auto n = given["n"].cast<std::int64_t>();
  const auto head_dim = given["head_dim"].cast<std::int64_t>();
  const double cosine = argument(given, "cosine", detail::score_experiment_case{}.cosine);
  if (name == "entropy_vs_length") {
    entropy_options options{n, law, head_dim, model_named(given["model"].cast<std::string>()), {}};
    if (given.contains("correlation")) options.correlation = given["correlation"].cast<double>();
    return [=](const run_options& how) { return entropy_vs_length(options, how); };
  }
  if (name == "softmax_saturation")
    return [=](const run_options& how) { return softmax_saturation({head_dim, n, law}, how); };
  if (name == "needle_dilution")
    return [=](const run_options& how) { return needle_dilution({n, law, head_dim, cosine}, how); };
  if (name == "averaging_error")
    return [=](const run_options& how) { return averaging_error({n, law, head_dim}, how); };
  if (name == "head_dimension")
    return [=](const run_options& how) { return head_dimension({head_dim, n, cosine, law}, how); };
  if (name != "sparsity") throw std::invalid_argument("there is no experiment " + name);
  const auto normalizer = normalizers_of(given);
  const score_model model = model_named(given["model"].cast<std::string>());
  return [=](const run_options& how) {
    return sparsity({n, law, normalizer, head_dim, model}, how);
  };
}

experiment_call call_of(const std::string& name, const py::dict& given) {
  if (name == "max_cosine") {
    const max_cosine_options options{given["n"].cast<std::int64_t>(),
                                     given["head_dim"].cast<std::int64_t>()};
    return [=](const run_options& how) { return max_cosine(options, how); };
  }
  if (name == "dot_product_variance") {
    const dot_product_options options{given["head_dim"].cast<std::int64_t>(),
                                      distribution_named(given["distribution"].cast<std::string>()),
                                      argument(given, "query_mean", 0.0),
                                      argument(given, "key_mean", 0.0),
                                      argument(given, "std", 1.0)};
    return [=](const run_options& how) { return dot_product_variance(options, how); };
  }
  if (name == "jl_distortion") {
    const projection_options options{nullptr,
                                     given["n"].cast<std::int64_t>(),
                                     given["dim"].cast<std::int64_t>(),
                                     given["k"].cast<std::int64_t>(),
                                     projection_named(given["kind"].cast<std::string>()),
                                     given["eps"].cast<std::vector<double>>()};
    return [=](const run_options& how) { return jl_distortion(options, how); };
  }
  return call_with_laws(name, given);
}

/// A call of experiments.hpp: (quantities, values, errors, samples); values and errors are
/// (entries, quantities).
py::tuple mc_experiment(const std::string& name, const py::dict& options, const py::dict& run) {
  const experiment_call call = call_of(name, options);
  run_options how;
  if (run.contains("samples")) how.samples = run["samples"].cast<std::int64_t>();
  if (run.contains("target_error")) how.target_error = run["target_error"].cast<double>();
  if (run.contains("seed")) how.seed = run["seed"].cast<std::uint64_t>();
  how.max_samples = argument(run, "max_samples", how.max_samples);
  experiment_result result;
  run_released(argument(run, "num_threads", 0), [&](const execution& with) {
    how.how = with;
    result = call(how);
  });
  if (result.interrupted) throw py::error_already_set();
  std::vector<double> values, errors;
  for (const estimate& each : result.estimates) {
    values.push_back(each.value);
    errors.push_back(each.standard_error);
  }
  const extents shape{static_cast<std::int64_t>(result.entries.size()),
                      static_cast<std::int64_t>(result.quantities.size())};
  return py::make_tuple(
      std::vector<std::string>(result.quantities.begin(), result.quantities.end()),
      array_of(values, shape), array_of(errors, shape), result.samples);
}

}  // namespace

void register_experiments(py::module_& m) {
  m.attr("mc_pairs_of_row") = detail::pairs_of_row;
  m.def("tally_add", &tally_add, py::arg("tally"), py::arg("rows"));
  m.def("tally_mean", &tally_mean, py::arg("tally"));
  m.def("tally_covariance", &tally_covariance, py::arg("tally"));
  m.def("tally_standard_error", &tally_standard_error, py::arg("tally"));
  m.def("share_error", py::vectorize(&detail::share_error), py::arg("share"), py::arg("rows"));
  m.def("mc_means_and_shares", &mc_means_and_shares, py::arg("tally"), py::arg("shares"),
        py::arg("bounded"));
  m.def("mc_dot_product_moments", &mc_dot_product_moments, py::arg("tally"), py::arg("head_dim"));
  m.def("mc_rows_wanted", &detail::rows_wanted, py::arg("rows"), py::arg("most"),
        py::arg("target_error"), py::arg("errors"));
  m.def("mc_experiment_rows", &mc_experiment_rows, py::kw_only(), py::arg("experiment"),
        py::arg("model"), py::arg("n"), py::arg("head_dim"), py::arg("correlation"),
        py::arg("cosine"), py::arg("betas"), py::arg("key"), py::arg("first"), py::arg("count"),
        py::arg("num_threads") = 0);
  m.def("mc_dot_product_rows", &mc_dot_product_rows, py::kw_only(), py::arg("head_dim"),
        py::arg("distribution"), py::arg("query_mean"), py::arg("key_mean"), py::arg("std"),
        py::arg("key"), py::arg("first"), py::arg("count"), py::arg("num_threads") = 0);
  m.def("mc_projection_rows", &mc_projection_rows, py::kw_only(), py::arg("points"), py::arg("n"),
        py::arg("dim"), py::arg("k"), py::arg("kind"), py::arg("eps"), py::arg("key"),
        py::arg("first"), py::arg("count"), py::arg("num_threads") = 0);
  m.def("mc_random_scores", &mc_random_scores, py::kw_only(), py::arg("model"), py::arg("n"),
        py::arg("head_dim"), py::arg("key"), py::arg("first"), py::arg("count"),
        py::arg("num_threads") = 0);
  m.def("mc_experiment", &mc_experiment, py::arg("name"), py::arg("options"), py::arg("run"));
}

}  // namespace attnscale::bindings
